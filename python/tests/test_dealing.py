"""Who gets what, and when: balance, modalities, dummy images, order by length, weights that change."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import errors

#: Two ranks that take two samples at a time, four of each global batch.
PAIR: dict[str, Any] = {
    "world_size": 2, "global_batch_size": 8, "micro_batch_size": 2, "sample_ids": True, "tensors": "numpy", "tail": "all",
}


def epoch(cache: Any, **options: Any) -> list[list[stoker.Batch]]:
    """The batches of an epoch, micro-step by micro-step over both ranks."""
    steps = []
    readers = [stoker.Reader(cache, **{**PAIR, "rank": rank, **options}) for rank in range(2)]
    for pair in zip(*readers, strict=True):
        # The reader uses a batch's memory again.
        steps.append([{name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
                      for batch in pair])
    return steps


def names(step: list[Any]) -> list[str]:
    return [name for batch in step for name in batch["sample_ids"] if name]


def test_balance_moves_samples_between_ranks_only(cache: Path) -> None:
    even, dealt = epoch(cache), epoch(cache, balance="none")
    heaviest = Counter()
    for first in range(0, len(even), 2):
        for key, steps in (("cost", even), ("none", dealt)):
            load = [sum(int(steps[first + k][rank]["attention_mask"].sum()) for k in range(2)) for rank in range(2)]
            heaviest[key] += max(load)
        assert sorted(names(even[first]) + names(even[first + 1])) == sorted(names(dealt[first]) + names(dealt[first + 1]))
    assert heaviest["cost"] < heaviest["none"]


def test_both_ranks_have_images_or_none_has(cache: Path) -> None:
    for options in ({"dummy_image": True}, {"dummy_image": True, "modalities": "same"}):
        for step in epoch(cache, **options):
            first, second = (len(batch["image_grid_thw"]) > 0 for batch in step)
            assert first == second
            for batch in step:
                if len(batch["sample_ids"]) == 3:
                    assert batch["image_grid_thw"].tolist() == [[1, 2, 2]]
                    assert batch["input_ids"].shape[0] == 3 and (batch["labels"][2] == -100).all()
    with pytest.raises(errors.ConfigError) as caught:
        epoch(cache, modalities="same", global_batch_size=2, micro_batch_size=1)
    assert "modalities=same" in str(caught.value) and "dummy_image=True" in str(caught.value)
    for option in ("balance", "modalities", "order"):
        with pytest.raises(errors.ConfigError, match="must be one of"):
            epoch(cache, **{option: "some"})


def test_lengths_come_together(cache: Path) -> None:
    random, ordered = epoch(cache), epoch(cache, order="length")
    assert sorted(itertools.chain(*map(names, ordered))) != []
    assert list(map(names, random)) != list(map(names, ordered))
    with stoker.Reader(cache, **{**PAIR, "rank": 0, "order": "length"}) as reader:
        state = reader.state_dict()
    with stoker.Reader(cache, **{**PAIR, "rank": 0}) as reader, pytest.raises(errors.OtherOrderError):
        reader.load_state_dict(state)


def test_weights_may_change_at_a_state(cache: Path, tmp_path: Path) -> None:
    other = shutil.copytree(cache, tmp_path / "other")
    options = {"global_batch_size": 1, "micro_batch_size": 1, "sample_ids": True, "tensors": "numpy", "tail": "all"}
    with stoker.Reader({cache: 3.0, other: 1.0}, **options) as reader:
        for _ in range(10):
            reader.next()
        state = reader.state_dict()
    assert sum(state["given"]) == 10 and state["given"][0] > state["given"][1]
    with stoker.Reader({cache: 1.0, other: 7.0}, **options) as reader:
        with pytest.raises(errors.OtherWeightsError) as caught:
            reader.load_state_dict(state)
        assert "reweight" in str(caught.value)
        reader.load_state_dict(state, reweight=True)
        for _ in range(16):
            reader.next()
        later = reader.state_dict()
        assert sum(later["given"]) == 26
        assert later["given"][1] - state["given"][1] > 10 > later["given"][0] - state["given"][0]
        expected = [reader.next()["sample_ids"] for _ in range(5)]
        reader.load_state_dict(later)
        assert [reader.next()["sample_ids"] for _ in range(5)] == expected
