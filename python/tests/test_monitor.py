"""The monitor: files, endpoint, and a reading that fails. Its reader is a stand-in that counts."""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker._monitor import prometheus_text


class Counting:
    """Stats that differ each time; `read` is set once they were asked for."""

    def __init__(self, **more: Any) -> None:
        self.more, self.count, self.read = more, 0, threading.Event()

    def stats(self) -> dict[str, Any]:
        self.count += 1
        if self.count > 1:
            self.read.set()
        return {"batches": self.count, "limited_by": 'the "disk"', "stage": {"read": {"bytes": 7}}, **self.more}


def test_files_and_endpoint_hold_the_measures(tmp_path: Path) -> None:
    reader = Counting()
    lines, text = tmp_path / "a.jsonl", tmp_path / "a.prom"
    with stoker.Monitor(reader, jsonl=lines, prometheus=text, port=0, interval=0.01, labels={"rank": "3"}) as monitor:
        assert reader.read.wait(60)
        url = f"http://127.0.0.1:{monitor.port}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
            served = answer.read().decode()
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=60)
        assert "Counting" in repr(monitor)
    assert 'stoker_limited_by{rank="3",value="the \\"disk\\""} 1\n' in served
    assert '# TYPE stoker_stage_read_bytes gauge\nstoker_stage_read_bytes{rank="3"} 7\n' in served
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["batches"] for row in rows] == sorted({row["batches"] for row in rows})
    assert len(rows) >= 2 and rows[0]["rank"] == "3" and rows[0]["time"] > 0
    assert f'stoker_batches{{rank="3"}} {rows[-1]["batches"]}\n' in text.read_text()
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "a.prom"]
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/metrics", timeout=60)
    monitor.close()


def test_closing_writes_the_last_state(tmp_path: Path) -> None:
    with stoker.Monitor(Counting(), jsonl=tmp_path / "a.jsonl", interval=3600):
        pass
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1


def test_a_failing_reading_is_a_warning_and_no_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Counting):
        def stats(self) -> dict[str, Any]:
            super().stats()
            raise stoker.StokerError("closed")

    reader = Failing()
    with caplog.at_level(logging.WARNING, "stoker"), stoker.Monitor(reader, port=0, interval=0.01) as monitor:
        assert reader.read.wait(60)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{monitor.port}/metrics", timeout=60)
    assert "cannot write its measures: closed" in caplog.text
    with caplog.at_level(logging.WARNING, "stoker"):
        with stoker.Monitor(Counting(), jsonl=tmp_path / "no" / "folder", interval=3600):
            pass
    assert "No such file" in caplog.text


def test_a_hung_read_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = Counting(slow_reads=[{"path": "/nvme/p0000-000000.arrow", "seconds": 31.4}])
    with caplog.at_level(logging.WARNING, "stoker"), stoker.Monitor(reader, interval=3600) as monitor:
        monitor.write()
        monitor.write()
        assert "stoker_slow_reads 1\n" in monitor.text()
    assert caplog.text.count("has waited 31 s for a read of `/nvme/p0000-000000.arrow`") == 1


def test_wrong_options_are_refused() -> None:
    with pytest.raises(stoker.errors.ConfigError):
        stoker.Monitor(Counting(), interval=0)
    with stoker.Monitor(Counting(), port=0) as monitor, pytest.raises(stoker.errors.ConfigError, match="loopback"):
        stoker.Monitor(Counting(), port=monitor.port)
    for port in (70_000, -1):
        with pytest.raises(stoker.errors.ConfigError, match=f"loopback port `{port}`"):
            stoker.Monitor(Counting(), port=port)


def test_text_without_labels() -> None:
    assert prometheus_text({"a b": 0.25, "none": None}, {}) == "# TYPE stoker_a_b gauge\nstoker_a_b 0.25\n"
