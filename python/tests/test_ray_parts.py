"""What a build on a cluster does that needs no cluster: pieces of files, whole parts, the line of progress."""

from __future__ import annotations

from pathlib import Path

import pytest

import stoker
import stoker.ray
from conftest import SOURCE
from stoker import _ray_node, _ray_progress, errors


def test_files_are_cut_into_pieces_and_put_together(tmp_path: Path) -> None:
    sizes = {"a": 10_000, "b": 1, "c/d": 4096, "c/e": 5000, "f": 3}
    for name, size in sizes.items():
        path = tmp_path / "from" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    node = _ray_node.Node(str(tmp_path / "from"))
    runs = list(_ray_node.cut(sizes.items(), 4096))
    assert all(sum(size for _, _, size in run) <= 4096 and len(run) <= 4 for run in runs)
    for run in runs:
        _ray_node.write(tmp_path / "to", node.read(run))
    for name in sizes:
        assert (tmp_path / "to" / name).read_bytes() == (tmp_path / "from" / name).read_bytes()


def test_a_part_is_finished_if_all_of_it_is_there(tmp_path: Path, build_options: dict) -> None:
    del build_options["progress"]
    node = _ray_node.Node(str(tmp_path))
    options = {**build_options, "input": SOURCE, "partitions": 4, "max_rejects": "50%"}
    plan = node.plan(options)
    plans = [plan["image_plan_id"], plan["text_plan_id"]]
    assert node.finished(plans, 4) == []
    node.build(options, [3, 1], 4)
    assert node.finished(plans, 4) == [1, 3]
    assert node.finished(plans[::-1], 4) == node.finished(plans, 2) == []
    held = {str(path.relative_to(tmp_path)): path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    small = {name: size for name, size in held.items() if "shards" not in name and "/" in name}
    assert dict(node.files([1, 3], 4)) == small
    for kind in ("shards/p0003-000000.arrow", "receipts/p0003-000000.json", "index/p0003.arrow"):
        path = next(path for path in tmp_path.glob(f"text-*/{kind}"))
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        assert node.finished(plans, 4) == [1]
        path.write_bytes(data)
    (tmp_path / "parts" / "0001-of-0004.json").write_text("{}")
    assert node.finished(plans, 4) == [3]
    node.stop()
    with pytest.raises(_ray_node.Stopped):
        node.build({**options, "seed": 1, "restart": True}, [0, 1, 2, 3], 4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input", 5),
        ("input", [5]),
        ("model", None),
        ("output", 5),
        ("output", ""),
        ("nodes", "node-1"),
        ("nodes", [1]),
        ("placement", 3),
        ("placement", [[0], 1]),
        ("placement", [["0"]]),
        ("placement", [[-1]]),
        ("workers", 0),
        ("workers", True),
        ("workers", 1.5),
        ("num_cpus", "2"),
        ("num_cpus", 0),
        ("commit_to", 5),
        ("timeout", "600"),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("progress", "yes"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_asked_of_ray(tmp_path: Path, name: str, value: object) -> None:
    given = {"input": SOURCE, "model": tmp_path, "output": tmp_path, "progress": False, name: value}
    with pytest.raises(errors.ConfigError) as caught:
        stoker.ray.build(given.pop("input"), **given)
    assert caught.value.message.startswith(f"{name} cannot be `") and caught.value.hint


def test_the_line_counts_over_nodes_and_builds() -> None:
    plan = {"stage": "plan", "done": 900, "total": 1000, "images": 0, "records": 0, "bytes_in": 900, "bytes_out": 0, "rejects": 0}
    doing = {**plan, "stage": "build", "done": 30, "total": 40, "images": 20, "records": 10, "rejects": 1}
    assert _ray_progress.following({}, plan)["total"] == 0
    ended = _ray_progress.following(doing, {**doing, "stage": "commit", "done": 0, "total": 1})
    assert (ended["done"], ended["total"]) == (40, 40)
    again = _ray_progress.added(ended, doing)
    whole = _ray_progress.total("build", {"a": again, "b": _ray_progress.added({}, doing)}, 3)
    assert (whole["done"], whole["total"], whole["images"], whole["rejects"]) == (100, 120, 60, 3)
    text = _ray_progress.words(whole, {}, 10.0, 100.0)
    assert text == "build 83.3%: 3 records/s, 6 images/s, in 270.0 B/s, out 0.0 B/s, 3 rejects, 2 of 3 nodes, ETA 20 s"
    # A builder that began again counts less than before.
    assert "0 images/s" in _ray_progress.words(whole, {**whole, "images": 99}, 10.0, 100.0)


def test_without_ray_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, build_options: dict) -> None:
    import sys

    import stoker.ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(stoker.errors.ConfigError, match="Ray is not installed"):
        stoker.ray.build(SOURCE, output=tmp_path, **build_options)
