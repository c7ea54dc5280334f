"""The reader from Python: what is in the batches, loops, states, errors."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import errors

#: A world of one that takes four samples at a time.
ALONE: dict[str, Any] = {
    "rank": 0, "world_size": 1, "global_batch_size": 4, "micro_batch_size": 2, "sample_ids": True, "tensors": "numpy",
}


@pytest.fixture
def reader(cache: Path):
    with stoker.Reader(cache, tail="all", last="pad", **ALONE) as reader:
        yield reader


def ids(batches) -> list[str]:
    return [name for batch in batches for name in batch["sample_ids"] if name]


def test_batches_hold_what_the_cache_holds(cache: Path, reader: stoker.Reader) -> None:
    """Ids, labels and grids of each row against the builder's own view of the sample."""
    loss_tokens: dict[int, int] = {}
    for batch in reader:
        assert list(batch) == [
            "pixel_values", "image_grid_thw", "input_ids", "labels", "position_ids", "attention_mask", "n_loss_tokens",
            "sample_ids",
        ]
        grids, patches = batch["image_grid_thw"].tolist(), 0
        for row, name in enumerate(batch["sample_ids"]):
            if not name:
                assert (batch["labels"][row] == -100).all()
                continue
            sample = stoker.inspect(cache, sample=name)
            length = sample["n_tokens"]
            assert batch["input_ids"][row, :length].tolist() == sample["input_ids"]
            assert batch["labels"][row, :length].tolist() == sample["labels"]
            assert batch["labels"][row, length:].tolist() == [-100] * (batch["labels"].shape[1] - length)
            assert batch["attention_mask"][row].tolist() == [1] * length + [0] * (batch["labels"].shape[1] - length)
            for image in sample["images"]:
                assert grids.pop(0) == image["grid_thw"]
                patches += image["patches"][0]
            loss_tokens[batch.position] = loss_tokens.get(batch.position, 0) + sample["n_loss_tokens"]
        assert not grids
        assert batch["pixel_values"].shape == (patches, 1536) and batch["pixel_values"].dtype == np.float32
        assert batch["position_ids"].shape == (3, *batch["input_ids"].shape)
        assert batch["input_ids"].dtype == batch["labels"].dtype == batch["image_grid_thw"].dtype == np.int64
        assert batch.n_loss_tokens == batch["n_loss_tokens"]
    # Both micro-batches of a global batch say the count of all of it.
    reader.seek(0)
    for batch in reader:
        assert batch.n_loss_tokens == loss_tokens[batch.position]


def test_each_epoch_has_each_sample_once_in_another_order(cache: Path, reader: stoker.Reader) -> None:
    first, second = ids(reader), ids(reader)
    assert len(set(first)) == len(first) == 31
    assert sorted(first) == sorted(second) and first != second
    assert len(reader) == 16
    with stoker.Reader(cache, tail="all", last="pad", **ALONE) as other:
        assert ids(other) == first
    with stoker.Reader(cache, tail="all", last="pad", seed=1, **ALONE) as other:
        assert ids(other) != first
    with stoker.Reader(cache, tail="all", last="pad", shuffle="none", **ALONE) as other:
        assert ids(other) == ids(other)


def test_loops_go_on_where_the_last_one_stopped(cache: Path, reader: stoker.Reader) -> None:
    whole = ids(reader)
    reader.seek(0)
    parts = ids(itertools.islice(reader, 3)) + ids(itertools.islice(reader, 1)) + ids(reader)
    assert parts == whole
    loop = iter(reader)
    assert len(list(loop)) == 16
    assert next(loop, None) is None and next(loop, None) is None
    assert reader.next().epoch == 2
    turns = itertools.cycle(itertools.islice(reader, 2))
    seen = [batch["sample_ids"] for batch in itertools.islice(turns, 4)]
    assert seen[:2] == seen[2:]


def test_states_resume_exactly(cache: Path) -> None:
    """At every batch of two epochs, through JSON, in another reader."""
    with stoker.Reader(cache, **ALONE) as reader, stoker.Reader(cache, **ALONE) as other:
        states, names = [], []
        for _ in range(2):
            for batch in reader:
                names.append(batch["sample_ids"])
                states.append(json.loads(json.dumps(reader.state_dict())))
        for number, state in enumerate(states):
            assert len(json.dumps(state)) <= 1024
            other.load_state_dict(state)
            assert other.state_dict() == state
            rest = [batch["sample_ids"] for batch in itertools.chain(other, other)][: len(names) - number - 1]
            assert rest == names[number + 1 :]


def test_states_and_counters_resume_with_other_ranks(cache: Path) -> None:
    def rest(state: dict | None, consumed: int | None, world_size: int, micro: int) -> list[set[str]]:
        """The global batches that are left of the epoch, over all ranks."""
        ranks = []
        for rank in range(world_size):
            options = {**ALONE, "rank": rank, "world_size": world_size, "micro_batch_size": micro}
            with stoker.Reader(cache, **options) as reader:
                if state is not None:
                    reader.load_state_dict(state)
                if consumed is not None:
                    reader.seek(consumed)
                ranks.append([(batch.position, batch["sample_ids"]) for batch in reader])
        batches: dict[int, set[str]] = {}
        for position, names in itertools.chain(*ranks):
            batches.setdefault(position, set()).update(names)
        return list(batches.values())

    with stoker.Reader(cache, **ALONE) as reader:
        for _ in range(4):
            reader.next()
        state = reader.state_dict()
    expected = rest(state, None, 1, 2)
    assert [len(names) for names in expected] == [4] * len(expected)
    for world_size, micro in ((1, 1), (1, 4), (2, 1), (2, 2), (4, 1)):
        assert rest(state, None, world_size, micro) == expected
        assert rest(None, 8, world_size, micro) == expected
    whole = rest(None, None, 1, 2)
    assert whole[2:] == expected


def test_wrong_states_are_told_apart(cache: Path, tmp_path: Path, build_options: dict) -> None:
    other_cache = tmp_path / "other"
    stoker.build(
        Path(__file__).parents[2] / "examples" / "sft" / "vqa.jsonl", output=other_cache, min_pixels=1024,
        max_pixels=4096, **build_options,
    )
    with stoker.Reader(cache, **ALONE) as reader:
        reader.next()
        inside = reader.state_dict()
        reader.next()
        state = reader.state_dict()
        before = reader.state_dict()
        for wrong, kind in (
            ({**state, "seed": 1}, errors.DamagedCursorError),
            ({**state, "version": 99}, errors.NewerCursorError),
            ({}, errors.DamagedCursorError),
        ):
            with pytest.raises(kind):
                reader.load_state_dict(wrong)
            assert reader.state_dict() == before
        with pytest.raises(errors.DamagedCursorError, match="state_dict"):
            reader.load_state_dict({**state, "position": "2".encode()})
        # As some checkpoints give numbers back.
        reader.load_state_dict({key: np.int64(value) if isinstance(value, int) else value for key, value in state.items()})
        assert reader.state_dict() == before
    for options, kind in (
        ({"seed": 1}, errors.OtherSeedError),
        ({"tail": "all"}, errors.OtherOrderError),
        ({"cache": {cache: 2.0, other_cache: 1.0}}, errors.OtherDataError),
        ({"cache": other_cache}, errors.OtherDataError),
    ):
        with stoker.Reader(**{"cache": cache, **ALONE, **options}) as reader:
            with pytest.raises(kind) as caught:
                reader.load_state_dict(state)
            assert isinstance(caught.value, errors.CursorError)
    with stoker.Reader(cache, **{**ALONE, "micro_batch_size": 1}) as reader:
        with pytest.raises(errors.GeometryError):
            reader.load_state_dict(inside)
    # What is left after one batch of 4 of 28 samples fills no batches of 7.
    with stoker.Reader(cache, last="error", **ALONE) as reader:
        reader.next(), reader.next()
        left = reader.state_dict()
    with stoker.Reader(cache, last="error", **{**ALONE, "global_batch_size": 7, "micro_batch_size": 7}) as reader:
        with pytest.raises(errors.CursorError, match="left over: `3`"):
            reader.load_state_dict(left)
        with pytest.raises(errors.ConfigError, match="consumed_samples cannot be `-1`"):
            reader.seek(-1)
    mixture = {cache: 2.0, other_cache: 1.0}
    with stoker.Reader(mixture, **ALONE) as reader:
        state = reader.state_dict()
    with stoker.Reader({cache: 1.0, other_cache: 2.0}, **ALONE) as reader, pytest.raises(errors.OtherWeightsError):
        reader.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"global_batch_size": 3}, "nearest"),
        ({"micro_batch_size": 0}, "micro"),
        ({"split": "none"}, "train"),
        ({"shuffle": "some"}, "shard"),
        ({"dtype": "int4"}, "bfloat16"),
        ({"layout": "round"}, "packed"),
        ({"backend": "carrier pigeon"}, "pread"),
        ({"verify": "no"}, "first-read"),
        ({"prefetch_bytes": "lots"}, "size"),
        ({"threads": 0}, "threads"),
        ({"cache": []}, "caches"),
        ({"device": "cuda:0"}, "NumPy"),
        ({"rank": 1}, "rank"),
        ({"global_batch_size": "4"}, "global_batch_size cannot be `'4'`"),
        ({"micro_batch_size": -1}, "micro_batch_size cannot be `-1`"),
        ({"placement": [0, 1]}, "placement cannot be `0`"),
        ({"placement": [[(0, 1, 2)]]}, r"placement cannot be `\(0, 1, 2\)`"),
        ({"device": "cuda:99999999999", "tensors": "auto"}, "cuda:99999999999"),
    ],
)
def test_wrong_options_are_named(cache: Path, options: dict, words: str) -> None:
    with pytest.raises(errors.ConfigError, match=words):
        stoker.Reader(**{"cache": cache, **ALONE, **options})


def test_batches_outlive_their_reader_and_share_its_memory(cache: Path) -> None:
    with stoker.Reader(cache, **ALONE) as reader:
        batch = reader.next()
    array = batch["input_ids"]
    expected = array.copy()
    view = batch.as_numpy()["input_ids"]
    assert np.shares_memory(array, view) and array.flags.writeable
    del batch, view, reader
    gc.collect()
    assert (array == expected).all()
    assert array.__array_interface__["data"][0] % 64 == 0


def test_packed_rows_and_types(cache: Path) -> None:
    options = {**ALONE, "layout": "packed"}
    with stoker.Reader(cache, dtype="uint8", **options) as bytes_, stoker.Reader(cache, dtype="bfloat16", **options) as bits:
        for one, other in zip(bytes_, bits):
            assert list(one) == [
                "pixel_values", "image_grid_thw", "input_ids", "labels", "position_ids", "cu_seqlens", "n_loss_tokens",
                "max_seqlen", "sample_ids",
            ]
            borders = one["cu_seqlens"]
            assert borders.dtype == np.int32 and borders[0] == 0 and borders[-1] == one["input_ids"].shape[1]
            assert one["max_seqlen"] == np.diff(borders).max()
            text = one["position_ids"][0, 0]
            assert one["position_ids"].shape == (4, 1, borders[-1])
            assert [text[start] for start in borders[:-1]] == [0] * (len(borders) - 1)
            assert one["pixel_values"].dtype == np.uint8 and one["pixel_values"].shape[1] == 768
            assert other["pixel_values"].dtype == np.uint16 and other["pixel_values"].shape[1] == 1536


def test_two_caches_and_a_placement(cache: Path, copy_cache) -> None:
    with stoker.Reader([cache, str(cache)], **ALONE) as reader:
        assert len(ids(reader)) > 31
    nodes = [[np.int64(0)], [(0, 1)]]
    seen = []
    for rank in range(2):
        options = {**ALONE, "rank": rank, "world_size": 2, "node_rank": rank, "num_nodes": 2, "placement": nodes}
        with stoker.Reader(cache, **options) as reader:
            seen += ids(reader)
    assert len(seen) == len(set(seen)) == 28
    partial = copy_cache(cache)
    for shard in partial.glob("*/shards/p0001-*"):
        shard.unlink()
    with pytest.raises(errors.MissingFilesError, match="p0001"):
        stoker.Reader(partial, **ALONE)
    with pytest.raises(errors.ConfigError, match="lie on other nodes"):
        stoker.Reader(partial, **{**ALONE, "placement": [[0]]})


def test_damage_raises_and_a_state_goes_on(cache: Path, copy_cache) -> None:
    broken = copy_cache(cache)
    with stoker.Reader(broken, **ALONE) as reader:
        state = reader.state_dict()
        shards = sorted(broken.glob("images-*/shards/*.arrow"))
        kept = [shard.read_bytes() for shard in shards]
        for shard, data in zip(shards, kept):
            shard.write_bytes(data[:1000] + bytes(len(data) - 1000))
        with pytest.raises(errors.DamageError, match=r"row \d+.*shard"):
            for _ in reader:
                pass
        with pytest.raises(errors.StoppedError):
            reader.next()
        for shard, data in zip(shards, kept):
            shard.write_bytes(data)
        reader.load_state_dict(state)
        assert len(list(reader)) == len(reader)


def test_a_lost_shard_is_no_damage(cache: Path, copy_cache) -> None:
    broken = copy_cache(cache)
    with stoker.Reader(broken, **ALONE) as reader:
        for shard in broken.glob("images-*/shards/*.arrow"):
            shard.unlink()
        with pytest.raises(errors.FileError, match=r"row \d+.*shard.*No such file"):
            for _ in reader:
                pass


def test_a_closed_reader_says_so(cache: Path) -> None:
    reader = stoker.Reader(cache, **ALONE)
    assert repr(reader) == "<stoker.Reader of split train, rank 0 of 1: epoch 0, position 0>"
    batch = reader.next()
    assert repr(batch).startswith("<stoker.Batch of epoch 0, position 0: pixel_values float32[")
    reader.close()
    reader.close()
    for call in (reader.next, reader.state_dict, reader.stats, lambda: len(reader)):
        with pytest.raises(errors.ConfigError, match="closed"):
            call()
    assert "closed" in repr(reader)
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(reader)


def test_stats_count(cache: Path, tmp_path: Path, reader: stoker.Reader) -> None:
    assert reader.stats()["batches"] == 0
    with stoker.Monitor(reader, jsonl=tmp_path / "a.jsonl", prometheus=tmp_path / "a.prom", interval=3600):
        count = len(list(reader))
    stats = json.loads((tmp_path / "a.jsonl").read_text())
    assert stats["batches"] == count == 16
    assert stats["image_bytes"] > 0 and stats["sample_bytes"] > 0 and stats["slow_reads"] == []
    assert stats["limit"] in ("consumer", "read", "assemble", "budget")
    text = (tmp_path / "a.prom").read_text()
    assert "stoker_batches 16\n" in text and f'stoker_limit{{value="{stats["limit"]}"}} 1\n' in text
