"""The body of test_megatron.py: two data-parallel times two tensor-parallel ranks, on gloo, by megatron.core.

usage: torchrun --nproc-per-node 4 megatron_ranks.py CACHE OUT
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

import stoker  # noqa: E402
from stoker.megatron import Batches  # noqa: E402

STEPS = 9


def told(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch as JSON, pixels as their sum."""
    return {
        name: value.double().sum().item() if name == "pixel_values" else value.tolist()
        for name, value in batch.items()
        if isinstance(value, torch.Tensor)
    } | {name: value for name, value in batch.items() if not isinstance(value, torch.Tensor)}


def main(cache: str, out: str) -> None:
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    result = {layout: read(cache, layout) for layout in ("padded", "packed")}
    with open(f"{out}.{dist.get_rank()}", "w", encoding="utf-8") as file:
        json.dump({"data_rank": parallel_state.get_data_parallel_rank(), **result}, file)
    dist.destroy_process_group()


def read(cache: str, layout: str) -> list[dict[str, Any]]:
    """The batches of this rank, the same whether it reads them or is sent them."""
    options = {"global_batch_size": 4, "micro_batch_size": 1, "layout": layout, "sample_ids": True}
    result: dict[str, list[dict[str, Any]]] = {}
    for mode in ("every", "broadcast"):
        batches = Batches(cache, tensor_parallel=mode, **options)
        got = [told(next(batches)) for _ in range(STEPS)]
        state = batches.state_dict()
        assert bool(state) == (mode == "every" or parallel_state.get_tensor_model_parallel_rank() == 0)
        rest = [told(next(batches)) for _ in range(STEPS)]
        batches.load_state_dict(state)
        assert [told(next(batches)) for _ in range(STEPS)] == rest
        batches.close()
        # The place after 16 samples of all ranks is that after 8 micro-batches of this one.
        sought = Batches(cache, tensor_parallel=mode, consumed_samples=16, device="cpu", **options)
        assert told(next(sought)) == got[8]
        sought.close()
        try:
            next(sought)
        except stoker.errors.ConfigError as error:
            assert "closed" in str(error)
        else:
            raise AssertionError("a closed reader gave a batch")
        result[mode] = got + rest
        fails(mode, cache, options, state)
    assert result["every"] == result["broadcast"]
    return result["every"]


def fails(mode: str, cache: str, options: dict[str, Any], state: dict[str, Any]) -> None:
    """What the reading rank cannot open or restore is an error on every rank, and reading goes on after it."""
    try:
        Batches(f"{cache}-that-is-not", tensor_parallel=mode, **options)
    except stoker.StokerError as error:
        assert "that-is-not" in str(error)
    else:
        raise AssertionError("a cache that is not there was opened")
    batches = Batches(cache, tensor_parallel=mode, seed=5, **options)
    first = told(next(batches))
    try:
        batches.load_state_dict(state)
    except stoker.errors.OtherSeedError:
        batches.load_state_dict(Batches(cache, tensor_parallel=mode, seed=5, **options).state_dict())
    else:
        raise AssertionError("a state of another seed was taken")
    assert told(next(batches)) == first
    batches.close()
    # Weights that change are a matter of the reading rank, too.
    mixed = [Batches({cache: 3.0, f"{cache}/.": other}, tensor_parallel=mode, **options) for other in (1.0, 7.0)]
    for _ in range(2):
        next(mixed[0])
    state = mixed[0].state_dict()
    mixed[1].load_state_dict(state, reweight=True)
    next(mixed[1])
    for batches in mixed:
        batches.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
