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


@pytest.mark.skipif(STUB is None, reason="STOKER_CUDA_STUB names no stub driver")
def test_batches_arrive_as_the_host_has_them(cache: Path, tmp_path: Path) -> None:
    shutil.copy(str(STUB), tmp_path / "libcuda.so.1")
    # Found first, where a machine has a driver of its own. One file, so that it is one library.
    (tmp_path / "libcuda.so").symlink_to("libcuda.so.1")
    (tmp_path / "config").write_text("delay 300\nseed 4\n")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "CUSTUB_CONFIG": str(tmp_path / "config"),
        "CUSTUB_REPORT": str(tmp_path / "report"),
    }
    child = Path(__file__).with_name("device_child.py")
    done = subprocess.run(
        [sys.executable, str(child), str(cache)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == 6 and min(counts) > 20
    report = (tmp_path / "report").read_text().splitlines()
    clean = "closed device=0 locked=0 streams=0 events=0 modules=0 lost=0 "
    assert report and all(line.startswith(clean) for line in report), report


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_driver_says_so(cache: Path) -> None:
    with pytest.raises(DeviceError, match="cuda:0") as caught:
        stoker.Reader(cache, device="cuda:0", tensors="torch", **ALONE)
    assert caught.value.hint


def test_devices_that_there_are_not(cache: Path) -> None:
    for device in ("gpu", "cuda:", "cuda:x", "cuda:-1", "mps"):
        with pytest.raises(ConfigError, match="device is cpu, cuda or cuda:N"):
            stoker.Reader(cache, device=device, tensors="torch", **ALONE)
