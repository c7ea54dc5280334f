"""A cluster of four nodes builds the cache of one machine: nodes lost and back, cancelled, done again, read where it lies.

Each node is a Ray node of its own on a loopback address, with a folder of its own. Skipped where Ray is not installed.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
import stoker.ray
from conftest import MODEL, SOURCE

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")

NAMES = [f"127.0.0.{10 + number}" for number in range(4)]
HEAD = "127.0.0.2"
# A dead node is noticed in a second or two.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 4,
}
SMALL = {"include_dashboard": False, "object_store_memory": 80 << 20}
# Takes seconds on four nodes of one core each: long beside the looks at it.
PICTURES = 216
SIDE = 2000
LOOK_SECONDS = 0.1
PARTITIONS = 12


class Nodes:
    """The cluster; nodes are told by their addresses, which are their names."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "node_ip_address": HEAD, "_system_config": HEALTH, **SMALL}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: dict[str, Any] = {}
        self.whole()
        ray.init(address=self.cluster.address, _node_ip_address=HEAD, log_to_driver=False)

    def kill(self, name: str) -> None:
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def whole(self) -> None:
        """Start the nodes that are not there."""
        for name in NAMES:
            if name not in self.nodes:
                self.nodes[name] = self.cluster.add_node(num_cpus=1, node_ip_address=name, **SMALL)

    def close(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def _nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


@pytest.fixture
def nodes(_nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """All four nodes, and after the test none of their CPUs in use."""
    monkeypatch.setattr(stoker.ray, "TICK_SECONDS", LOOK_SECONDS)
    _nodes.whole()
    yield _nodes
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU", 0) < len(_nodes.nodes):
        assert time.monotonic() < deadline, "an actor is left"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records with a picture each, of which a few are large and stand under many names."""
    folder = tmp_path_factory.mktemp("corpus")
    ramp = np.arange(SIDE, dtype=np.uint32)
    lines = []
    for number in range(PICTURES):
        path = folder / f"{number}.png"
        if number < 12:
            pixels = np.stack([ramp[:, None] * 7 + ramp * (number + color) for color in range(3)], -1).astype(np.uint8)
            path.write_bytes(png(pixels))
        else:
            os.link(folder / f"{number % 12}.png", path)
        lines.append(json.dumps({"image": path.name, "question": f"What is {number}?", "answer": "A ramp."}))
    (folder / "a.jsonl").write_text("\n".join([*lines, "no record"]) + "\n")
    return folder


@pytest.fixture(scope="module")
def options(corpus: Path) -> dict[str, Any]:
    return {
        "input": corpus / "a.jsonl", "model": MODEL, "max_pixels": 4096, "min_pixels": 1024, "partitions": PARTITIONS,
        "max_rejects": "50%",
    }


@pytest.fixture(scope="module")
def clean(options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache as one machine builds it."""
    output = tmp_path_factory.mktemp("clean") / "cache"
    stoker.build(**options, output=output, progress=False)
    return output


def png(pixels: np.ndarray) -> bytes:
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def files(root: Path) -> dict[str, bytes]:
    """All of a cache but the lock and the parts' own files."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != "stoker.lock" and not name.startswith("parts/")}


def shards(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in files(root).items() if "/shards/" in name}


def stamps(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in root.rglob("p[0-9]*-*") if path.is_file()}


def same(clean: Path, report: dict[str, Any]) -> None:
    """Each node has the clean cache but for the shards that others hold, and all together hold each shard once."""
    expected = files(clean)
    all_shards: dict[str, bytes] = {}
    for node, row in zip(report["nodes"], report["placement"], strict=True):
        held = files(Path(node["output"]))
        own = {name for name in expected if "/shards/" in name and int(name.rpartition("/p")[2].split("-")[0]) in row}
        assert held == {name: data for name, data in expected.items() if "/shards/" not in name or name in own}
        assert not all_shards.keys() & own
        all_shards.update({name: held[name] for name in own})
    assert all_shards == shards(clean)
    assert sorted(sum(report["placement"], [])) == list(range(PARTITIONS))


def at_work(name: str, act: Callable[[], None]) -> Callable[[dict[str, Any]], None]:
    """A function for `progress` that acts once, in the middle of what node `name` builds."""
    acted = []

    def look(doing: dict[str, Any]) -> None:
        node = doing["nodes"].get(name, {})
        if node.get("stage") == "build" and node["done"] > 0 and not acted:
            acted.append(node)
            assert node["done"] < node["total"]
            act()

    look.acted = acted  # type: ignore[attr-defined]
    return look


def test_a_node_that_is_lost_is_done_without(nodes: Nodes, options: dict[str, Any], clean: Path, tmp_path: Path) -> None:
    output = f"{tmp_path}/{{node}}/cache"
    look = at_work(NAMES[2], lambda: nodes.kill(NAMES[2]))
    report = stoker.ray.build(**options, output=output, commit_to=tmp_path / "here", progress=look)
    assert look.acted and [node["name"] for node in report["nodes"]] == [*NAMES[:2], NAMES[3]]
    assert [len(row) for row in report["placement"]] == [4, 4, 4]
    assert not (tmp_path / NAMES[2] / "cache" / "manifest.json").exists()
    same(clean, report)
    assert report["fingerprint"] == stoker.inspect(clean)["fingerprint"] == stoker.inspect(tmp_path / "here")["fingerprint"]
    assert not shards(tmp_path / "here")
    for node in report["nodes"]:
        assert stoker.verify(node["output"], deep=True, progress=False)["sound"]

    # Again: what is built is found, and nothing is.
    before = stamps(tmp_path)
    stages = set()
    again = stoker.ray.build(
        **options, output=output, nodes=[*NAMES[:2], NAMES[3]],
        progress=lambda doing: stages.update(node.get("stage") for node in doing["nodes"].values()),
    )
    assert "build" not in stages and stamps(tmp_path / NAMES[0]).items() <= before.items()
    assert [again[key] for key in ("placement", "fingerprint")] == [report[key] for key in ("placement", "fingerprint")]
    same(clean, again)


def test_with_a_placement_a_lost_node_is_waited_for(
    nodes: Nodes, options: dict[str, Any], clean: Path, tmp_path: Path
) -> None:
    placement = [[0, 11, 5], [1, 2, 3], [4, 10, 6], [7, 8, 9]]
    order = [NAMES[number] for number in (3, 1, 0, 2)]

    def lose() -> None:
        nodes.kill(NAMES[1])
        nodes.whole()

    look = at_work(NAMES[1], lose)
    report = stoker.ray.build(
        **options, output=f"{tmp_path}/{{node}}", nodes=order, placement=placement, timeout=60, progress=look
    )
    assert look.acted and [node["name"] for node in report["nodes"]] == order
    assert report["placement"] == [sorted(row) for row in placement]
    same(clean, report)
    ids = []
    for rank in range(8):
        reader = stoker.Reader(
            report["nodes"][rank // 2]["output"], global_batch_size=24, micro_batch_size=3, rank=rank, world_size=8,
            node_rank=rank // 2, num_nodes=4, placement=report["placement"], tail="all", sample_ids=True, tensors="numpy",
        )
        ids += [name for batch in reader for name in batch["sample_ids"]]
    assert sorted(ids) == sorted(f"a.jsonl:{line + 1}" for line in range(PICTURES))


def test_a_cancelled_build_stops_everywhere_and_goes_on(
    nodes: Nodes, options: dict[str, Any], clean: Path, tmp_path: Path
) -> None:
    output = f"{tmp_path}/{{node}}"
    began: list[float] = []

    def cancel() -> None:
        began.append(time.monotonic())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stoker.ray.build(**options, output=output, progress=at_work(NAMES[0], cancel))
    assert time.monotonic() - began[0] < 15
    done = stamps(tmp_path)
    assert not list(tmp_path.glob("*/manifest.json"))
    for name in NAMES:
        # Nobody holds the folder.
        stoker.build(**options, output=tmp_path / name, dry_run=True, progress=False)
    report = stoker.ray.build(**options, output=output, progress=False)
    same(clean, report)
    assert report["placement"] == [list(range(number, PARTITIONS, 4)) for number in range(4)]
    after = stamps(tmp_path)
    kept = [name for name in done if "/images-" in name]
    assert all(after[name] == done[name] for name in kept)


def test_errors_name_the_node(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build_options: dict) -> None:
    errors, one, two = stoker.errors, NAMES[:1], NAMES[:2]
    given = {**build_options, "output": f"{tmp_path}/{{node}}", "partitions": 4}
    # Three of 34 records are rejected, of which one node has at least one.
    with pytest.raises(errors.TooManyRejectsError, match=r"node 127\.0\.0\.1\d: "):
        stoker.ray.build(SOURCE, **{**given, "max_rejects": 0})
    with pytest.raises(errors.FileError, match=f"node {NAMES[0]}: .*none.jsonl"):
        stoker.ray.build(tmp_path / "none.jsonl", **given, nodes=one)
    with pytest.raises(errors.BuildError, match=f"node {NAMES[0]}: FileExistsError"):
        (tmp_path / "file").touch()
        stoker.ray.build(SOURCE, **{**given, "output": tmp_path / "file"}, nodes=one)
    with pytest.raises(errors.ConfigError, match="have one folder"):
        stoker.ray.build(SOURCE, **{**given, "output": tmp_path / "one"}, nodes=two)
    with pytest.raises(errors.BuildError, match="no builder ran within 1 s on node `elsewhere`"):
        stoker.ray.build(SOURCE, **given, nodes=["elsewhere"], timeout=1)
    with pytest.raises(errors.ConfigError, match=f"node {NAMES[0]} has fewer CPUs than num_cpus asks for: `1`"):
        stoker.ray.build(SOURCE, **given, nodes=one, num_cpus=2)

    class User:
        def is_there(self) -> bool:
            return True

    user = ray.remote(User).options(num_cpus=1, resources={f"node:{NAMES[0]}": 0.001}).remote()
    ray.get(user.is_there.remote())
    with pytest.raises(errors.BuildError, match=f"no builder ran within 1 s on node `{NAMES[0]}`"):
        stoker.ray.build(SOURCE, **given, nodes=one, timeout=1)
    ray.kill(user)
    for placement, workers, words in (
        ([[0, 1, 2, 3]], None, "of 1 nodes"),
        ([[0, 1], [2]], None, r"no node of the placement has these partitions: `\[3\]`"),
        ([[0, 1], [2, 4]], None, "not of whole parts"),
        ([[0, 1], [2, 3]], 2, "not of whole parts"),
    ):
        with pytest.raises(errors.ConfigError, match=words):
            stoker.ray.build(SOURCE, **given, nodes=two, placement=placement, workers=workers)
    with pytest.raises(errors.ConfigError, match="no option of a build on a cluster: `worker`"):
        stoker.ray.build(SOURCE, **given, worker=1)
    with pytest.raises(TypeError, match="no_such_option"):
        stoker.ray.build(SOURCE, **given, no_such_option=1)
    # Something else is unfinished there, until it is dropped.
    other = tmp_path / "other"
    given |= {"output": f"{other}/{{node}}", "max_rejects": "50%", "nodes": two}
    stoker.build(SOURCE, model=MODEL, output=other / NAMES[0], worker=0, workers=2, seed=9, max_rejects="50%", progress=False)
    with pytest.raises(errors.UnfinishedBuildError, match=f"node {NAMES[0]}: "):
        stoker.ray.build(SOURCE, **given)
    report = stoker.ray.build(SOURCE, **given, restart=True, workers=2)
    assert report["placement"] == [[0, 2], [1, 3]] and report["samples"] == 31
    monkeypatch.setattr(stoker.ray, "__version__", "9.9.9")
    with pytest.raises(errors.ConfigError, match=rf"has stoker {stoker.__version__}, the driver has `9\.9\.9`"):
        stoker.ray.build(SOURCE, **{**given, "nodes": one})


def test_a_builder_that_dies_is_started_again(nodes: Nodes, options: dict[str, Any], clean: Path, tmp_path: Path) -> None:
    """The process of a builder is killed, its node lives."""

    def kill() -> None:
        raylet = nodes.nodes[NAMES[1]].all_processes["raylet"][0].process.pid
        children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
        (builder,) = [child for child in children if b"ray::Node" in Path(f"/proc/{child}/cmdline").read_bytes()]
        os.kill(int(builder), signal.SIGKILL)

    look = at_work(NAMES[1], kill)
    report = stoker.ray.build(**options, output=f"{tmp_path}/{{node}}", progress=look)
    assert look.acted and report["placement"] == [list(range(number, PARTITIONS, 4)) for number in range(4)]
    same(clean, report)
