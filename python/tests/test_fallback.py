"""Files that a node lacks, from a folder and from a server that speaks as much of S3 as reading needs."""

from __future__ import annotations

import gc
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import errors

ALONE: dict[str, Any] = {
    "rank": 0, "world_size": 1, "global_batch_size": 4, "micro_batch_size": 2, "sample_ids": True, "tensors": "numpy",
    "tail": "all", "last": "pad",
}  # fmt: skip


def part_of(cache: Path, to: Path, *, indexes: bool = True) -> Path:
    """A copy without shards, or without anything."""
    if indexes:
        shutil.copytree(cache, to, ignore=lambda folder, names: names if folder.endswith("shards") else [])
    return to


def read(reader: stoker.Reader) -> list[dict[str, Any]]:
    return [dict(batch) for batch in reader]


def equal(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    return len(found) == len(wanted) and all(
        one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
        for one, other in zip(found, wanted, strict=True)
    )


@pytest.fixture
def expected(cache: Path) -> list[dict[str, Any]]:
    with stoker.Reader(cache, **ALONE) as reader:
        return read(reader)


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder's folders as buckets; `asked` has the paths of all that was asked for. What has `held` in its path is not
    answered before `go` is set."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.asked = root, []
        self.held, self.go = None, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait_until_held(self) -> None:
        while not any(str(self.held) in path for path in self.asked):
            time.sleep(0.001)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server: Any = self.server
        path = self.path.split("?")[0].strip("/")
        server.asked.append(path)
        if server.held is not None and server.held in path:
            server.go.wait()
        file = server.root / path
        if not file.is_file():
            body = b"<Error><Code>NoSuchKey</Code></Error>"
            self.answer(404, body, {"Content-Type": "application/xml"})
            return
        body, kept = file.read_bytes(), self.headers.get("Range")
        headers = {"ETag": f'"{len(body)}"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        if kept is None:
            self.answer(200, body, headers)
            return
        first, last = kept.removeprefix("bytes=").split("-")
        start, end = int(first), min(int(last) + 1, len(body))
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(body)}"
        self.answer(206, body[start:end], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not news."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    server = Server(tmp_path / "s3")
    yield server
    server.go.set()
    server.shutdown()
    server.server_close()


def test_a_node_with_an_empty_disk_reads_from_s3(
    cache: Path, tmp_path: Path, server: Server, expected: list[dict[str, Any]]
) -> None:
    shutil.copytree(cache, tmp_path / "s3" / "bucket" / "run")
    lines = tmp_path / "a.jsonl"
    for indexes in (False, True):
        node = part_of(cache, tmp_path / f"node{indexes}", indexes=indexes)
        options = {**ALONE, "fallback": "s3://bucket/run/", "cache_disk": "1GiB", "s3_endpoint": server.endpoint}
        with stoker.Reader(node, **options) as reader, stoker.Monitor(reader, jsonl=lines, interval=3600) as monitor:
            (plan,) = reader.plan()
            assert equal(read(reader), expected)
            stats = reader.stats()
            text = monitor.text()
        assert 0 < stats["fetched_bytes"] and stats["fetched_bytes"] <= stats["held_bytes"]
        # The plan counts shards alone.
        brought = [] if indexes else [*cache.glob("*/index/*")]
        assert plan["bytes"] == plan["bytes_at_most"]
        assert plan["bytes"] >= stats["fetched_bytes"] - sum(file.stat().st_size for file in brought)
        assert (plan["node"], plan["partitions"]) == (0, [[0, 0], [0, 1]])
        assert plan["shards"] >= stats["fetched_files"] - len(brought) and plan["units"] == 31
        assert stats["evicted_bytes"] == 0 and stats["remote_seconds"] > 0
        for name in ("fetched_bytes", "fetched_files", "evicted_bytes", "held_bytes", "remote_seconds"):
            assert f"\nstoker_{name} " in text
        written = json.loads(lines.read_text().splitlines()[-1])
        assert written["fetched_bytes"] == stats["fetched_bytes"]
    shards = [path for path in server.asked if "shards" in path]
    assert shards and stats["fetched_files"] > 0


def test_a_folder_is_a_fallback_and_a_mixture_may_have_some(
    cache: Path, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    node = part_of(cache, tmp_path / "node")
    with pytest.raises(errors.MissingFilesError):
        stoker.Reader(node, **ALONE)
    options: dict[str, Any] = {**ALONE, "cache_disk": 1 << 30, "cache_folder": tmp_path / "brought"}
    with stoker.Reader(node, fallback=cache, **options) as reader:
        assert equal(read(reader), expected)
        state = reader.state_dict()
    assert os.listdir(tmp_path / "brought" / "files")
    with stoker.Reader(cache, **ALONE) as reader:
        reader.load_state_dict(state)
        wanted = read(reader)
    with stoker.Reader(node, fallback=cache, **options) as reader:
        reader.load_state_dict(state)
        assert equal(read(reader), wanted)
        assert reader.stats()["fetched_bytes"] == 0
    with stoker.Reader([cache, node], fallback=[None, cache], **options) as reader:
        mixed = read(reader)
    with stoker.Reader({cache: 1.0, node: 2.0}, fallback={node: cache}, **options) as reader:
        assert len(read(reader)) == len(mixed)
    with stoker.Reader([cache, cache], **ALONE) as reader:
        assert equal(mixed, read(reader))


def test_a_fork_leaves_the_parent_its_threads(cache: Path, tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    node = part_of(cache, tmp_path / "node")
    reader = stoker.Reader(node, fallback=cache, cache_disk="1GiB", **ALONE)
    batches = [reader.next()]
    child = os.fork()
    if child == 0:
        # Whatever happens here, the child ends.
        try:
            reader.close()
            del reader
            gc.collect()
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert equal([dict(batch) for batch in [*batches, *reader]], expected)
    reader.close()
    assert not os.listdir(node / "fallback" / "readers")


def test_a_fork_that_lives_on_holds_no_lock_of_the_parent(
    cache: Path, tmp_path: Path, server: Server, expected: list[dict[str, Any]]
) -> None:
    """It has the parent's open files, of which one is being brought. There is room for the largest shard alone."""
    shutil.copytree(cache, tmp_path / "s3" / "bucket" / "run")
    node, server.held = part_of(cache, tmp_path / "node"), "shards"
    bound = max(shard.stat().st_size for shard in cache.glob("*/shards/*"))
    options = {**ALONE, "fallback": "s3://bucket/run", "s3_endpoint": server.endpoint, "remote_timeout": 20}
    with stoker.Reader(node, cache_disk=bound, **options) as reader:
        found: list[dict[str, Any]] = []
        reading = threading.Thread(target=lambda: found.extend(read(reader)))
        reading.start()
        server.wait_until_held()
        ends, lives = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(lives)
            os.read(ends, 1)
            os._exit(0)
        server.go.set()
        reading.join()
        assert equal(found, expected)
        os.close(lives)
        os.close(ends)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


OPENED = """
import signal, sys
import stoker
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    stoker.Reader(sys.argv[1], fallback="s3://bucket/run", s3_endpoint=sys.argv[2], cache_disk="1GiB",
                  rank=0, world_size=1, global_batch_size=4, micro_batch_size=2, tensors="numpy")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_an_opening_that_waits(cache: Path, tmp_path: Path, server: Server) -> None:
    """An index does not come, which has minutes."""
    shutil.copytree(cache, tmp_path / "s3" / "bucket" / "run")
    server.held = "index"
    arguments = [sys.executable, "-c", OPENED, str(tmp_path / "node"), server.endpoint]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as opening:
        server.wait_until_held()
        opening.send_signal(signal.SIGINT)
        try:
            said = opening.communicate(timeout=60)
        finally:
            opening.kill()
    assert (said[0], opening.returncode) == ("interrupted\n", 0), said[1]


def refused(kind: type[Exception], words: str, cache: Any, **options: Any) -> stoker.StokerError:
    with pytest.raises(kind, match=words) as caught:
        with stoker.Reader(cache, **{**ALONE, **options}) as reader:
            read(reader)
    error = caught.value
    assert isinstance(error, errors.StokerError)
    return error


def test_errors_say_what_to_do(cache: Path, tmp_path: Path, copy_cache: Callable[[Path], Path]) -> None:
    node = part_of(cache, tmp_path / "node")
    refused(errors.ConfigError, "cache_disk", node, fallback=cache)
    refused(errors.ConfigError, "do not fit cache_disk=10", node, fallback=cache, cache_disk=10)
    refused(errors.ConfigError, "1 caches need as many fallbacks", node, fallback=[cache, None], cache_disk="1GiB")
    refused(errors.ConfigError, "not read: `other`", node, fallback={"other": cache}, cache_disk="1GiB")
    refused(errors.ConfigError, "remote_timeout", node, fallback=cache, cache_disk="1GiB", remote_timeout=-1)
    assert refused(errors.ConfigError, "cache_disk=10", node, fallback=cache, cache_disk=10).hint
    refused(errors.RemoteError, "manifest.json", node, fallback=tmp_path / "none", cache_disk="1GiB")
    remote = copy_cache(cache)
    for shard in remote.glob("images-*/shards/*"):
        shard.unlink()
    error = refused(errors.RemoteError, "could not bring `images-", node, fallback=remote, cache_disk="1GiB")
    assert str(remote) in error.message and "push it again" in str(error.hint)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fallback": 5}, "fallback cannot be `5`"),
        ({"fallback": [5]}, "fallback cannot be `5`"),
        ({"fallback": b"s3://bucket/x"}, "fallback cannot be `b's3://bucket/x'`"),
        ({"fallback": {"cache": 1.5}}, "fallback cannot be `1.5`"),
        ({"cache_folder": 7}, "cache_folder cannot be `7`"),
        ({"cache_folder": ""}, "cache_folder cannot be `''`"),
        ({"cache_disk": 0.5}, "cache_disk: .*`0.5`"),
        ({"cache_disk": True}, "cache_disk: .*`True`"),
        ({"cache_disk": ["1GiB"]}, "cache_disk: .*1GiB"),
        ({"remote_timeout": "5"}, "remote_timeout cannot be `'5'`"),
        ({"remote_timeout": float("nan")}, "remote_timeout is in seconds, more than 0.001: `NaN`"),
        ({"remote_timeout": 0}, "remote_timeout .*`0`"),
        ({"remote_timeout": 0.001}, "remote_timeout .*`0.001`"),
        ({"remote_timeout": float("inf")}, "remote_timeout .*`inf`"),
    ],
)
def test_wrong_types_are_named_with_what_to_give(cache: Path, options: dict[str, Any], words: str) -> None:
    given = {"fallback": cache, "cache_disk": "1GiB", **options}
    assert refused(errors.ConfigError, words, cache, **given).hint
