"""Packs through the package: what a packed row holds, what is refused, and that a model learns the same from it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stoker

BUDGET = 512


@pytest.fixture(scope="module")
def packed(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The session's cache with two pack tables."""
    copy = tmp_path_factory.mktemp("packed") / "cache"
    shutil.copytree(cache, copy)
    small = stoker.pack(copy, max_tokens=BUDGET, name="small", progress=False)
    stoker.pack(copy, max_tokens=2 * BUDGET, name="large", progress=False)
    assert stoker.pack(copy, max_tokens=BUDGET, name="small", threads=1, progress=False)["table"] == small["table"]
    return copy


def opened(cache: Path, **options: Any) -> stoker.Reader:
    sizes = {"global_batch_size": 1, "micro_batch_size": 1}
    return stoker.Reader(cache, **{**sizes, "tail": "all", "sample_ids": True, "tensors": "numpy", **options})


def segments(batch: dict[str, Any]) -> list[tuple[str, slice]]:
    """Sample ids of a packed row with the places of their tokens; padding has none."""
    borders = batch["cu_seqlens"].tolist()
    return [(name, slice(*ends)) for name, ends in zip(batch["sample_ids"], zip(borders, borders[1:]), strict=True)]


def singles(cache: Path, layout: str = "packed", **options: Any) -> dict[str, dict[str, Any]]:
    with opened(cache, layout=layout, **options) as reader:
        batches = [batch.as_torch() if options else batch.as_numpy() for batch in reader]
    return {batch["sample_ids"][0]: batch for batch in batches}


def test_a_pack_fills_its_budget_with_whole_samples(packed: Path) -> None:
    alone, seen = singles(packed), []
    with opened(packed, pack="small") as reader:
        assert len(reader) < len(alone)
        for batch in map(stoker.Batch.as_numpy, reader):
            assert batch["input_ids"].shape == (1, BUDGET) and batch["position_ids"].shape == (4, 1, BUDGET)
            assert batch["cu_seqlens"][-1] == BUDGET and batch["max_seqlen"] == np.diff(batch["cu_seqlens"]).max()
            images = []
            for name, tokens in segments(batch):
                if not name:
                    assert (batch["labels"][0, tokens] == -100).all()
                    assert (batch["position_ids"][:, 0, tokens] == np.arange(tokens.stop - tokens.start)).all()
                    continue
                seen.append(name)
                sample = alone[name]
                images.append(sample["pixel_values"])
                for part in ("input_ids", "labels", "position_ids"):
                    assert (batch[part][..., tokens] == sample[part]).all()
            assert (batch["pixel_values"] == np.concatenate(images)).all()
    assert sorted(seen) == sorted(alone)


def test_a_state_fits_the_same_packs_only(packed: Path) -> None:
    states = {}
    for name in (None, "small", "large"):
        with opened(packed, pack=name) as reader:
            reader.next()
            states[name] = reader.state_dict()
    for saved, state in states.items():
        for given in states:
            with opened(packed, pack=given) as reader:
                if saved == given:
                    reader.load_state_dict(state)
                    continue
                with pytest.raises(stoker.errors.OtherDataError, match=given or "sample"):
                    reader.load_state_dict(state)


def test_what_makes_no_sense_is_refused(packed: Path, tmp_path: Path) -> None:
    for options, words in (
        ({"pack": "medium"}, "there are `large`, `small`"),
        ({"pack": "small", "layout": "padded"}, "packed rows only"),
        ({"pack": "small", "shuffle": "shard"}, "shuffle=shard"),
    ):
        with pytest.raises(stoker.errors.ConfigError, match=words):
            opened(packed, **options)
    copy = shutil.copytree(packed, tmp_path / "copy")
    for table in (copy / "packs").glob("*.parquet"):
        data = bytearray(table.read_bytes())
        data[len(data) // 2] ^= 1
        table.write_bytes(data)
    with opened(copy, pack="small") as reader, pytest.raises(stoker.errors.DamageError, match="packs/"):
        reader.next()


def test_adapters_pass_packs_on(packed: Path) -> None:
    torch = pytest.importorskip("torch")
    from stoker.megatron import Batches, convert
    from stoker.torch import IterableDataset

    sizes = {"pack": "small", "global_batch_size": 2, "micro_batch_size": 2, "sample_ids": True}
    batches = list(IterableDataset(packed, **sizes))
    assert len(batches) > 1 and batches[0]["input_ids"].shape == (1, 2 * BUDGET)
    one = dict.fromkeys(("data_parallel", "tensor_model_parallel", "context_parallel"), 1)
    alone = {f"get_{kind}_world_size": lambda: 1 for kind in one} | {f"get_{kind}_rank": lambda: 0 for kind in one}
    for batch, made in zip(batches, Batches(packed, parallel_state=SimpleNamespace(**alone), **sizes)):
        assert made["sample_ids"] == batch["sample_ids"]
        assert torch.equal(made["tokens"], convert(batch, 2)["tokens"])
        # Each segment predicts its own next tokens, and padding nothing.
        assert int(made["loss_mask"].sum()) == int((batch["labels"] != -100).sum())
        for number, (name, tokens) in enumerate(segments(batch)):
            start = int(made["cu_seqlens_padded"][number])
            place = slice(start, start + tokens.stop - tokens.start)
            assert torch.equal(made["tokens"][0, place], batch["input_ids"][0, tokens])
            assert torch.equal(made["position_ids"][:, 0, place], batch["position_ids"][1:, 0, tokens])
            learnt = (batch["labels"][0, tokens][1:] != -100).float()
            assert torch.equal(made["loss_mask"][0, place][:-1], learnt) and made["loss_mask"][0, place][-1] == 0
            assert name or not learnt.any()


def test_packed_equals_unpacked(packed: Path) -> None:
    """Every learnt token has the same loss in its pack as in its sample alone, if attention keeps to the borders."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    from train_qwen3vl import loss_sum, make_model

    torch.set_num_threads(1)
    model = make_model(stoker.inspect(packed)["recipe"], 1280, 0).eval()

    @torch.no_grad()
    def losses(batch: dict[str, Any], mask: Any, positions: Any) -> Any:
        """The loss of each learnt token, in order."""
        pictures = {name: batch[name] if batch[name].numel() else None for name in ("pixel_values", "image_grid_thw")}
        inputs = {"input_ids": batch["input_ids"], "attention_mask": mask, "position_ids": positions}
        made = model(**inputs, **pictures, use_cache=False)
        labels = batch["labels"][0, 1:]
        return torch.nn.functional.cross_entropy(made.logits[0, :-1], labels, reduction="none")[labels != -100]

    alone = {
        name: losses(batch, batch["attention_mask"], batch["position_ids"])
        for name, batch in singles(packed, "padded", tensors="torch").items()
    }
    several = pictures = crossing = 0
    with opened(packed, pack="small", tensors="torch") as reader:
        for batch in map(stoker.Batch.as_torch, reader):
            names = [name for name in batch["sample_ids"] if name]
            several += len(names) > 1
            pictures += len(batch["image_grid_thw"]) > 1
            expected = torch.cat([alone[name] for name in names])
            places = torch.arange(BUDGET)
            segment = torch.bucketize(places, batch["cu_seqlens"][1:], right=True)
            causal = places[:, None] >= places
            within = causal & (segment[:, None] == segment)
            masks = [torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None] for mask in (within, causal)]
            found, across = (losses(batch, mask, batch["position_ids"][1:]) for mask in masks)
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            # The model finds the borders by itself where the positions of the text begin again.
            itself = losses(batch, None, batch["position_ids"])
            torch.testing.assert_close(itself, expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(loss_sum(model, batch).detach(), expected.sum(), rtol=1e-5, atol=1e-4)
            assert int((batch["labels"] != -100).sum()) == len(expected)
            # What samples see of each other would show.
            crossing += len(names) > 1 and (across - expected).abs().max() > 1e-3
    assert several > 1 and pictures > 1 and crossing == several
