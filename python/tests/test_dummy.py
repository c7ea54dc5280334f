"""A dummy image in a tiny Qwen3-VL: the loss is that without it, and the vision tower takes part on every rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5")

import stoker  # noqa: E402

#: Ranks and samples of a global batch.
RANKS = 4


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_dummy_image_runs_the_vision_tower_and_leaves_the_loss(cache: Path, layout: str) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    from train_qwen3vl import loss_sum, make_model

    torch.set_num_threads(1)
    model = make_model(stoker.inspect(cache)["recipe"], 1280, 0)
    tower = dict(model.model.visual.named_parameters())
    language = dict(model.model.language_model.named_parameters())
    assert tower and language

    def trained(batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any], dict[str, Any]]:
        """The loss, and the gradients of both towers."""
        model.zero_grad(set_to_none=True)
        loss = loss_sum(model, batch)
        loss.backward()
        grads = [{name: value.grad for name, value in part.items()} for part in (tower, language)]
        return loss.detach(), *grads

    dummies = 0
    for rank in range(RANKS):
        options = {
            "global_batch_size": RANKS, "micro_batch_size": 1, "rank": rank, "world_size": RANKS, "layout": layout,
            "tensors": "torch",
        }
        with stoker.Reader(cache, **options) as plain, stoker.Reader(cache, dummy_image=True, **options) as filled:
            for one, other in zip(map(stoker.Batch.as_torch, plain), map(stoker.Batch.as_torch, filled), strict=True):
                if len(one["image_grid_thw"]) == len(other["image_grid_thw"]):
                    continue
                dummies += 1
                assert len(one["image_grid_thw"]) == 0 and other["image_grid_thw"].tolist() == [[1, 2, 2]]
                expected, seen_nothing, wanted = trained(one)
                loss, seen, found = trained(other)
                torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
                assert all(grad is None for grad in seen_nothing.values())
                for name, grad in seen.items():
                    # Nothing is learnt of a black square.
                    assert grad is not None and not grad.any(), name
                for name, grad in wanted.items():
                    torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-4, msg=name)
    assert dummies > 2
