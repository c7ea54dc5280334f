"""What `stoker.ray` does on a node: builds parts there, says what is there, and moves small files.

Owns the cache folder of one node. Knows nothing of Ray, which makes an actor of a `Node`: its calls run in threads of one
process, so that it answers while it builds. Invariant: no shard ever leaves the node.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import _build
from ._stoker import __version__

# What others have built, without shards, while it is put together here.
INCOMING = "incoming"

# A name in a folder, the place of its first byte, and its bytes.
Chunk = tuple[str, int, bytes]


class Stopped(Exception):
    """The builder was asked to stop."""


class Node:
    """The builder of one node. `output` is the cache's folder there."""

    def __init__(self, output: str) -> None:
        self._output = Path(output)
        self._doing: dict[str, Any] = {}
        self._stop = threading.Event()

    def hello(self) -> tuple[str, list[Any]]:
        """The release that is installed here, and what tells this folder from those of other nodes."""
        self._output.mkdir(parents=True, exist_ok=True)
        there = self._output.stat()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return __version__, [boot, there.st_dev, there.st_ino]

    def plan(self, options: dict[str, Any]) -> dict[str, Any]:
        """The plan of the whole cache."""
        return _build.build(**options, output=self._output, dry_run=True, progress=self._look)

    def build(self, options: dict[str, Any], parts: list[int], workers: int) -> None:
        """Build these of `workers` parts."""
        _build.build(**options, output=self._output, worker=parts, workers=workers, progress=self._look)

    def progress(self) -> dict[str, Any]:
        """What the running build does, or what the last one did."""
        return self._doing

    def stop(self) -> None:
        """End the running build; what is done stays."""
        self._stop.set()

    def _look(self, doing: dict[str, Any]) -> None:
        self._doing = doing
        if self._stop.is_set():
            raise Stopped

    def finished(self, plans: list[str], workers: int) -> list[int]:
        """Those of `workers` parts of these plans that are here, with all their files."""
        found = []
        for path in sorted((self._output / "parts").glob(f"*-of-{workers:04}.json")):
            try:
                record = json.loads(path.read_bytes())
                if self._is_whole(record, plans):
                    found.append(record["name"]["worker"])
            except (ValueError, LookupError, TypeError):
                # No record: the part is built again.
                continue
        return found

    def _is_whole(self, record: dict[str, Any], plans: list[str]) -> bool:
        def has(name: str, size: int) -> bool:
            path = self._output / name
            return path.is_file() and path.stat().st_size == size

        files = [*_small(record), *_shards(record)]
        return [record["image_plan_id"], record["text_plan_id"]] == plans and all(has(*file) for file in files)

    def files(self, parts: list[int], workers: int) -> list[tuple[str, int]]:
        """Names and sizes of all files of these parts but shards."""
        sizes: dict[str, int] = {}
        for part in parts:
            path = self._output / _record(part, workers)
            data = path.read_bytes()
            sizes[_record(part, workers)] = len(data)
            sizes.update(_small(json.loads(data)))
        return list(sizes.items())

    def read(self, wanted: Iterable[tuple[str, int, int]]) -> list[Chunk]:
        """Pieces of the files here."""
        return read(self._output, wanted)

    def receive(self) -> None:
        """Make room for what others have built."""
        shutil.rmtree(self._output / INCOMING, ignore_errors=True)

    def write(self, chunks: Iterable[Chunk]) -> None:
        """Pieces of what others have built."""
        write(self._output / INCOMING, chunks)

    def commit(self) -> str:
        """Put everything that came together with the shards here; the cache's fingerprint."""
        incoming = self._output / INCOMING
        report = _build.commit(sorted(incoming.iterdir()), output=self._output)
        self.receive()
        return str(report["fingerprint"])


def read(folder: Path, wanted: Iterable[tuple[str, int, int]]) -> list[Chunk]:
    """Pieces of files: `wanted` has for each its name, where it begins, and how many bytes it has."""
    chunks = []
    for name, start, size in wanted:
        with open(folder / name, "rb") as file:
            file.seek(start)
            chunks.append((name, start, file.read(size)))
    return chunks


def write(folder: Path, chunks: Iterable[Chunk]) -> None:
    """Write pieces of files, which come in order."""
    for name, start, data in chunks:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab" if start else "wb") as file:
            file.write(data)


def cut(files: Iterable[tuple[str, int]], most: int) -> Iterator[list[tuple[str, int, int]]]:
    """Files as runs of pieces: name, begin, size. A run has at most `most` bytes, a small piece counted as a KiB."""
    run: list[tuple[str, int, int]] = []
    room = most
    for name, size in files:
        start = 0
        while start < size:
            piece = min(size - start, room)
            run.append((name, start, piece))
            start += piece
            room -= max(piece, 1024)
            if room <= 0:
                yield run
                run, room = [], most
    if run:
        yield run


def _record(part: int, workers: int) -> str:
    return f"parts/{part:04}-of-{workers:04}.json"


def _small(record: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """What a part has beside its record and its shards: names and sizes, as FORMAT.md says."""
    name = record["name"]
    stem = _record(name["worker"], name["workers"]).removesuffix(".json")
    for kind, table in record["tables"].items():
        yield f"{stem}-{kind}.parquet", table["bytes"]
    tokenizer = record["tokenizer"]
    yield f"text-{record['text_plan_id']}/tokenizer-{tokenizer['hash']}.json", tokenizer["bytes"]
    for folder, partition, files in _folders(record):
        for ordinal, size in enumerate(files["receipts"]["bytes"]):
            yield f"{folder}/receipts/p{partition:04}-{ordinal:06}.json", size
        yield f"{folder}/index/p{partition:04}.arrow", files["index"]["bytes"]


def _shards(record: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for folder, partition, files in _folders(record):
        for ordinal, size in enumerate(files["shards"]["bytes"]):
            # None was written where all of a receipt's items were rejected.
            if size:
                yield f"{folder}/shards/p{partition:04}-{ordinal:06}.arrow", size


def _folders(record: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    folders = {"images": f"images-{record['image_plan_id']}", "samples": f"text-{record['text_plan_id']}"}
    for entry in record["partitions"]:
        for kind, folder in folders.items():
            yield folder, entry["partition"], entry["files"][kind]
