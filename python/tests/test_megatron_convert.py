"""The reader's batches in Megatron's form, against a plain computation of what each position predicts."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from stoker.megatron import convert  # noqa: E402


def sample(number: int, length: int) -> tuple[list[int], list[int]]:
    """Ids that tell samples and places apart, and labels at about half of the places, the first one included."""
    ids = [1000 * number + place for place in range(1, length + 1)]
    return ids, [label if random.random() < 0.5 else -100 for label in ids]


def expected(ids: list[int], labels: list[int], padded: int) -> tuple[list[int], list[int], list[float]]:
    """Each position predicts the next token of its own sample, if that is learnt."""
    following = labels[1:] + [-100] + [-100] * (padded - len(ids))
    learnt = [label != -100 for label in following]
    return (
        ids + [9] * (padded - len(ids)),
        [label if yes else 0 for label, yes in zip(following, learnt)],
        [float(yes) for yes in learnt],
    )


def rounded(length: int, align: int) -> int:
    return -(-length // align) * align


@pytest.mark.parametrize("align", [2, 4, 8, 24])
def test_packed_rows(align: int) -> None:
    random.seed(align)
    lengths = [random.choice([1, 2, 7, 8, 16, 23]) for _ in range(6)]
    samples = [sample(number, length) for number, length in enumerate(lengths, 1)]
    borders = torch.tensor([0, *lengths]).cumsum(0)
    total = int(borders[-1])
    made = convert(
        {
            "input_ids": torch.tensor([sum((ids for ids, _ in samples), [])]),
            "labels": torch.tensor([sum((labels for _, labels in samples), [])]),
            "position_ids": torch.arange(4 * total).reshape(4, 1, total),
            "cu_seqlens": borders.to(torch.int32),
            "max_seqlen": max(lengths),
            "pixel_values": torch.empty(0, 1536),
            "image_grid_thw": torch.empty(0, 3, dtype=torch.int64),
            "n_loss_tokens": 5,
        },
        align,
        pad_id=9,
    )
    parts = [expected(ids, labels, rounded(len(ids), align)) for ids, labels in samples]
    for number, name in enumerate(("tokens", "labels", "loss_mask")):
        assert made[name].tolist() == [sum((part[number] for part in parts), [])]
    assert made["loss_mask"].dtype is torch.float32
    assert made["cu_seqlens"].tolist() == borders.tolist()
    assert made["cu_seqlens_padded"].dtype is made["max_seqlen"].dtype is torch.int32
    assert made["cu_seqlens_padded"].diff().tolist() == [rounded(length, align) for length in lengths]
    assert made["max_seqlen"].tolist() == [rounded(max(lengths), align)]
    assert made["position_ids"].shape == (3, 1, made["tokens"].shape[1])
    for row in range(3):
        kept = [
            made["position_ids"][row, 0, start : start + length].tolist()
            for start, length in zip(made["cu_seqlens_padded"].tolist(), lengths)
        ]
        assert sum(kept, []) == list(range((row + 1) * total, (row + 2) * total))
    assert made["attention_mask"] is None
    assert made["n_loss_tokens"] == 5 and made["pixel_values"].shape == (0, 1536)
    assert not {"input_ids"} & made.keys()


def test_padded_rows() -> None:
    random.seed(1)
    lengths, padded = [5, 8, 1], 8
    samples = [sample(number, length) for number, length in enumerate(lengths, 1)]
    made = convert(
        {
            "input_ids": torch.tensor([ids + [9] * (padded - len(ids)) for ids, _ in samples]),
            "labels": torch.tensor([labels + [-100] * (padded - len(labels)) for _, labels in samples]),
            "position_ids": torch.zeros(3, 3, padded, dtype=torch.int64),
            "attention_mask": torch.ones(3, padded, dtype=torch.int64),
        },
        align=8,
    )
    parts = [expected(ids, labels, padded) for ids, labels in samples]
    for number, name in enumerate(("tokens", "labels", "loss_mask")):
        assert made[name].tolist() == [part[number] for part in parts]
    assert made["position_ids"].shape == (3, 3, padded)
    assert not {"cu_seqlens", "cu_seqlens_padded", "max_seqlen"} & made.keys()
