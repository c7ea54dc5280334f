"""Batches on a GPU, with a driver that is a stub: torch's part is played by a child process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker.errors import ConfigError, DeviceError

torch = pytest.importorskip("torch")

STUB = os.environ.get("STOKER_CUDA_STUB")
ALONE = {"global_batch_size": 2, "micro_batch_size": 2, "rank": 0, "world_size": 1}


NEEDS_STUB = pytest.mark.skipif(STUB is None, reason="STOKER_CUDA_STUB names no stub driver")


def child(cache: Path, tmp_path: Path, part: str, settings: str) -> tuple[list[int], list[str]]:
    """What a part of device_child.py printed, and the stub's report."""
    shutil.copy(str(STUB), tmp_path / "libcuda.so.1")
    # Found first, where a machine has a driver of its own. One file, so that it is one library.
    (tmp_path / "libcuda.so").symlink_to("libcuda.so.1")
    (tmp_path / "config").write_text(settings)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "CUSTUB_CONFIG": str(tmp_path / "config"),
        "CUSTUB_REPORT": str(tmp_path / "report"),
    }
    script = Path(__file__).with_name("device_child.py")
    done = subprocess.run(
        [sys.executable, str(script), str(cache), part], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()], (tmp_path / "report").read_text().splitlines()


def check_clean(report: list[str]) -> None:
    clean = "closed device=0 locked=0 streams=0 events=0 modules=0 lost=0 "
    assert report and all(line.startswith(clean) for line in report), report


@NEEDS_STUB
def test_batches_arrive_as_the_host_has_them(cache: Path, tmp_path: Path) -> None:
    counts, report = child(cache, tmp_path, "compare", "delay 300\nseed 4\n")
    assert len(counts) == 6 and min(counts) > 20
    check_clean(report)


@NEEDS_STUB
def test_a_batch_without_memory_stays_the_next_one(cache: Path, tmp_path: Path) -> None:
    counts, report = child(cache, tmp_path, "starve", "delay 100\nseed 5\n")
    assert len(counts) == 2 and min(counts) > 50
    check_clean(report)


@NEEDS_STUB
def test_a_batch_that_cannot_be_written_stops_the_reader(cache: Path, tmp_path: Path) -> None:
    _, report = child(cache, tmp_path, "fail", "fail cuMemcpyDtoDAsync_v2 9 1\n")
    assert any(line.startswith("failed cuMemcpyDtoDAsync_v2") for line in report)
    assert not any(line.startswith("violation") for line in report), report


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_driver_says_so(cache: Path) -> None:
    for device in ("cuda:0", "cuda"):
        with pytest.raises(DeviceError, match="cuda:0") as caught:
            stoker.Reader(cache, device=device, tensors="torch", **ALONE)
        assert caught.value.hint


def test_devices_that_there_are_not(cache: Path) -> None:
    for device in ("gpu", "cuda:", "cuda:x", "cuda:-1", "mps"):
        with pytest.raises(ConfigError, match="device is cpu, cuda or cuda:N"):
            stoker.Reader(cache, device=device, tensors="torch", **ALONE)
