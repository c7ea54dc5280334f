"""The builder from Python: same results as the command, exceptions by kind, Ctrl-C."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stoker
from conftest import MODEL, SOURCE


def command(*args: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "stoker", *map(str, args)], capture_output=True, text=True, timeout=120
    )


def test_build_verify_inspect_and_stats_agree_with_the_command(cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    ended = command(
        "build", "--input", SOURCE, "--model", MODEL, "--output", other, "--max-rejects", "20%",
        "--min-pixels", 1024, "--max-pixels", 4096, "--partitions", 2, "--json",
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    summary = stoker.inspect(cache)
    assert report["samples"] == 31
    assert report["fingerprint"] == summary["fingerprint"]
    assert stoker.stats(cache)["fingerprint"] == summary["fingerprint"]
    for deep in (False, True):
        checked = stoker.verify(cache, deep=deep, progress=False)
        assert checked == json.loads(command("verify", cache, "--json", *["--deep"] * deep).stdout)
        assert checked["sound"] and checked["deep"] is deep


def test_balance_is_the_commands(cache: Path, copy_cache) -> None:
    cache = copy_cache(cache)
    stoker.pack(cache, max_tokens=1024, name="for-balance", progress=False)
    for given, words in (
        ({"ranks": 2}, ["--ranks", 2]),
        (
            {"ranks": 2, "batch_size": 4, "nodes": 2, "split": "train", "pack": "for-balance"},
            ["--ranks", 2, "--batch-size", 4, "--nodes", 2, "--split", "train", "--pack", "for-balance"],
        ),
    ):
        ended = command("stats", cache, "--balance", *words, "--json")
        assert ended.returncode == 0, ended.stderr
        assert stoker.stats(cache, balance=True, **given) == json.loads(ended.stdout)
    assert stoker.stats(cache) == json.loads(command("stats", cache, "--json").stdout)
    for wrong, words in (
        ({"balance": True}, "--ranks"),
        ({"ranks": 2}, "--balance"),
        ({"balance": True, "ranks": 2, "batch_size": 3}, "3"),
        ({"balance": True, "ranks": 2, "split": "none"}, "none"),
    ):
        with pytest.raises(stoker.errors.StokerError, match=words):
            stoker.stats(cache, **wrong)


def test_a_cache_is_pushed_synced_and_repaired(cache: Path, tmp_path: Path) -> None:
    remote, share = tmp_path / "remote", tmp_path / "share"
    pushed = stoker.push(cache, remote, level=1, threads=2, progress=False)
    assert pushed["ratio"] > 1 and pushed["lacking"] == []
    assert stoker.push(cache, str(remote), progress=False)["files"] == 0
    synced = stoker.sync(remote, share, node=1, nodes=2, max_disk="1GiB", progress=False)
    assert synced["partitions"] == [1] and synced["fingerprint"] == pushed["fingerprint"]
    shard = next(share.glob("images-*/shards/*.arrow"))
    good = shard.read_bytes()
    shard.unlink()
    repaired = stoker.repair(share, remote, progress=False)
    assert repaired["sound"] and len(repaired["damages"]) == 1
    assert shard.read_bytes() == good
    again = stoker.sync(remote, share, node=1, nodes=2, progress=False)
    assert again["files"] == 0
    with pytest.raises(stoker.errors.InputError, match="no cache is there"):
        stoker.sync(tmp_path / "none", share, progress=False)
    with pytest.raises(stoker.errors.ConfigError, match="no node `2`"):
        stoker.sync(remote, share, node=2, nodes=2, progress=False)


def test_a_cache_is_repaired_from_its_source(cache: Path, copy_cache) -> None:
    cache = copy_cache(cache)
    shard = next(cache.glob("images-*/shards/*.arrow"))
    good = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    options = {"input": [SOURCE], "model": MODEL, "min_pixels": 1024, "max_pixels": 4096, "partitions": 2}
    with pytest.raises(stoker.errors.ConfigError, match="recipe.seed"):
        stoker.repair(cache, rebuild={**options, "seed": 1}, progress=False)
    repaired = stoker.repair(cache, rebuild=options, progress=False)
    assert repaired["sound"] and len(repaired["damages"]) == 1
    assert shard.read_bytes() == good
    for wrong in ({}, {"source": "/nowhere", "rebuild": options}):
        with pytest.raises(stoker.errors.ConfigError, match="source or rebuild"):
            stoker.repair(cache, **wrong)


def test_every_option_reaches_the_command(tmp_path: Path) -> None:
    plan = stoker.build(
        [SOURCE / "llava.jsonl", str(SOURCE / "vqa.jsonl")],
        model=str(MODEL), output=tmp_path / "cache", image_root=SOURCE, schema="auto", image_tag="inplace",
        profile="pil_path", transformers=4, min_pixels=1024, max_pixels=4096, max_tokens=100, overlong="truncate-turns",
        label_rule="qwen_finetune", seed=7, partitions=3, shard_bytes="1MiB", split={"val": 0.1, "test": "10%"},
        on_reject="skip", max_rejects=20, threads=1, memory_budget=1 << 30, s3_endpoint="http://127.0.0.1:1",
        allow_bucket=["first", "second"], restart=True, prune=True, dry_run=True, progress=False,
    )
    assert [split["name"] for split in plan["splits"]] == ["train", "val", "test"]
    assert plan["splits"][0]["partitions"] == 3
    assert plan["fits"] is True
    assert not (tmp_path / "cache" / "manifest.json").exists()


def test_one_sample_and_its_picture(cache: Path, tmp_path: Path) -> None:
    by_id = stoker.inspect(cache, sample="msg-compare", image=tmp_path / "picture.png")
    assert len(by_id["images"]) == 2
    assert [Path(path).exists() for path in by_id["pictures"]] == [True, True]
    by_row = stoker.inspect(cache, row=by_id["row"])
    assert by_row["sample_id"] == by_id["sample_id"]
    assert by_row["input_ids"] == by_id["input_ids"]
    assert "pictures" not in by_row


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "nice"}, "nice"),
        ({"schema": "x"}, "a shape is auto"),
        ({"split": ["train=1%"]}, "train"),
        ({"threads": 0}, "0"),
        ({"overlong": "reject"}, "max-tokens"),
        ({"shard_bytes": "much"}, "much"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict, words: str) -> None:
    with pytest.raises(stoker.errors.ConfigError, match=words) as caught:
        stoker.build(SOURCE, model=MODEL, output=tmp_path / "cache", **options)
    assert "--help" in caught.value.hint
    assert isinstance(caught.value, ValueError)


def test_wrong_questions_are_named(cache: Path) -> None:
    for wrong in ({"sample": "a", "row": 1}, {"image": "a.png"}, {"row": -1}, {"row": 31}, {"sample": "nobody"}):
        with pytest.raises(stoker.errors.ConfigError):
            stoker.inspect(cache, **wrong)
    with pytest.raises(TypeError):
        stoker.build(SOURCE, model=MODEL, output="x", no_such_option=1)


def test_errors_have_their_class_and_hint(tmp_path: Path, build_options: dict) -> None:
    with pytest.raises(stoker.errors.NotACacheError) as caught:
        stoker.inspect(tmp_path)
    assert str(tmp_path) in str(caught.value) and "hint: give the folder" in str(caught.value)
    with pytest.raises(stoker.errors.ModelError):
        stoker.build(SOURCE, model=tmp_path, output=tmp_path / "cache")
    with pytest.raises(stoker.errors.FileError, match="none.jsonl"):
        stoker.build(tmp_path / "none.jsonl", output=tmp_path / "cache", **build_options)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(stoker.errors.InputError, match="no records"):
        stoker.build(tmp_path / "empty.jsonl", output=tmp_path / "cache", **build_options)
    with pytest.raises(stoker.errors.TooManyRejectsError, match="rejected"):
        stoker.build(SOURCE, output=tmp_path / "cache", **{**build_options, "max_rejects": 0})


def test_damage_is_a_report_or_an_exception(cache: Path, tmp_path: Path, copy_cache) -> None:
    broken = copy_cache(cache)
    shard = next(broken.glob("images-*/shards/p0000-000000.arrow"))
    shard.unlink()
    report = stoker.verify(broken, progress=False)
    assert report["sound"] is False and report["damages"][0]["fault"] == "missing"
    with pytest.raises(stoker.errors.MissingFilesError, match="p0000-000000.arrow"):
        stoker.inspect(broken, row=0)


def test_exceptions_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(stoker.errors.FetchError("what", "do this")))
    assert (type(error), error.message, error.hint) == (stoker.errors.FetchError, "what", "do this")


SECRETS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}

# Prints a line once the build fetches, and what came of it.
INTERRUPTED = """
import signal, stoker, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    stoker.build(sys.argv[1], model=sys.argv[2], output=sys.argv[3], s3_endpoint=sys.argv[4], progress=False)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_stops_a_build_that_waits(tmp_path: Path) -> None:
    """The source is a server that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment = {**os.environ, **SECRETS}
        child = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, "s3://bucket/a.jsonl", MODEL, tmp_path / "cache", endpoint],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        with server.accept()[0]:
            child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=60)
    assert out == "interrupted\n"
    assert child.returncode == 0


def test_a_function_is_told_the_progress_and_may_stop_the_build(tmp_path: Path, build_options: dict) -> None:
    told: list[dict] = []
    report = stoker.build(SOURCE, output=tmp_path / "cache", **{**build_options, "progress": told.append})
    assert {"stage", "done", "total", "images", "records", "bytes_in", "bytes_out", "rejects"} == set(told[0])
    assert told[-1]["records"] <= report["records"] and told[0]["stage"] in ("start", "fetch inputs", "plan", "build", "commit")

    class Enough(Exception):
        pass

    def stop(doing: dict) -> None:
        calls.append(doing)
        raise Enough

    calls: list[dict] = []
    # A source that says nothing: only the function can end it.
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Enough):
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.MonkeyPatch.context() as environment:
            for name, value in SECRETS.items():
                environment.setenv(name, value)
            stoker.build(
                "s3://bucket/a.jsonl", model=MODEL, output=tmp_path / "other", s3_endpoint=endpoint, progress=stop
            )
    assert len(calls) == 1
    # It has ended, and let go of the folder.
    stoker.build(SOURCE, output=tmp_path / "other", **build_options)


def test_other_threads_run_during_a_build(tmp_path: Path, build_options: dict) -> None:
    """The turns a thread gets while a build of many milliseconds runs; with the lock held it would get none."""
    turns, done = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = turns
    stoker.build(SOURCE, output=tmp_path / "cache", **build_options)
    after = turns
    done.set()
    thread.join()
    assert after > before


def test_the_package_itself_tries_images(cache: Path) -> None:
    """An image that may have killed a build is tried in a child, which reads it from stdin and survives what it can."""
    recipe = json.dumps(stoker.inspect(cache)["recipe"]["image"])
    picture = next(SOURCE.rglob("*.jpg")).read_bytes()
    for data in (picture, b"no picture"):
        ended = subprocess.run(
            [sys.executable, "-m", "stoker", "try-image", "--recipe", recipe], input=data, capture_output=True, timeout=60
        )
        assert ended.returncode == 0, ended.stderr


def test_parts_of_two_workers_are_the_cache_of_one(tmp_path: Path, cache: Path, build_options: dict) -> None:
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    samples = []
    for worker, node in enumerate(nodes):
        part = stoker.build(
            SOURCE, output=node, min_pixels=1024, max_pixels=4096, partitions=2, worker=worker, workers=2, **build_options
        )
        assert part["part"]["worker"] == part["part"]["partitions"] == [worker]
        samples.append(part["samples"])
        assert "fingerprint" not in part
    with pytest.raises(stoker.errors.ConfigError, match="no part holds") as caught:
        stoker.commit(nodes[0], output=nodes[0])
    assert "--workers 2 --worker I" in caught.value.hint
    for node in nodes:
        report = stoker.commit(nodes, output=node)
        assert (node / "manifest.json").read_bytes() == (cache / "manifest.json").read_bytes()
    assert report["placement"] == [[0], [1]]
    ids = []
    for rank, node in enumerate(nodes):
        reader = stoker.Reader(
            node, global_batch_size=2, micro_batch_size=1, rank=rank, world_size=2, node_rank=rank, num_nodes=2,
            placement=report["placement"], tail="even", sample_ids=True,
        )
        ids += [name for batch in reader for name in batch["sample_ids"]]
        checked = stoker.verify(node, deep=True, progress=False)
        assert checked["sound"] and checked["not_held"] == [1 - rank]
    assert sum(samples) == 31
    # An epoch takes as many of each partition.
    assert len(ids) == len(set(ids)) == 2 * min(samples)


def test_partitions_are_placed_as_the_command_does(cache: Path, tmp_path: Path) -> None:
    table, four = tmp_path / "table.json", tmp_path / "four.json"
    report = stoker.place(cache, nodes=2, output=table)
    assert report["placement"] == json.loads(table.read_text()) == [[0], [1]]
    command = [sys.executable, "-m", "stoker", "place", cache, "--nodes", "2"]
    assert subprocess.run(command, check=True, capture_output=True, timeout=60).stdout == table.read_bytes()
    table.write_text("[[1], [0]]")
    again = stoker.place(cache, nodes=2, current=table)
    assert again["placement"] == [[1], [0]] and again["moved_bytes"] == 0
    share = stoker.sync(cache, tmp_path / "node", node=0, placement=table, progress=False)
    assert share["partitions"] == [1]
    # In the place of the table that it began with.
    assert stoker.place(cache, nodes=1, current=table, output=table)["moved_partitions"] == 1
    assert json.loads(table.read_text()) == [[0, 1]]
    for options, words in (
        ({"nodes": 0}, "not `0`"),
        ({"nodes": "two"}, "'two' for '--nodes"),
        ({"nodes": 2, "current": four}, "four.json"),
    ):
        with pytest.raises((stoker.errors.ConfigError, stoker.errors.FileError), match=words):
            stoker.place(cache, **options, output=four)
        assert not four.exists()


def test_a_part_needs_a_number(tmp_path: Path, build_options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(stoker.errors.ConfigError, match="no launcher"):
        stoker.build(SOURCE, output=tmp_path / "part", workers=2, **build_options)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    plan = stoker.build(SOURCE, output=tmp_path / "part", worker="auto", workers=2, partitions=2, dry_run=True, **build_options)
    assert plan["part"]["worker"] == [1]
    plan = stoker.build(SOURCE, output=tmp_path / "part", worker=(2, 0), workers=3, partitions=6, dry_run=True, **build_options)
    assert plan["part"] == {"worker": [0, 2], "workers": 3, "partitions": [0, 2, 3, 5], "all_partitions": 6}
