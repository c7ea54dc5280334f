"""What the adapters pass on to the reader, and what becomes of a batch that there is no memory for."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stoker  # noqa: E402
from stoker import errors, megatron  # noqa: E402
from stoker.megatron import Batches, convert  # noqa: E402
from stoker.torch import IterableDataset  # noqa: E402

SIZES: dict[str, Any] = {"global_batch_size": 2, "micro_batch_size": 2, "sample_ids": True}
KINDS = ("data_parallel", "tensor_model_parallel", "context_parallel")
ALONE = SimpleNamespace(
    **{f"get_{kind}_world_size": lambda: 1 for kind in KINDS}, **{f"get_{kind}_rank": lambda: 0 for kind in KINDS}
)


def of_megatron(cache: Any, **options: Any) -> Batches:
    return Batches(cache, parallel_state=ALONE, **{**SIZES, **options})


def of_torch(cache: Any) -> IterableDataset:
    return IterableDataset(cache, rank=0, world_size=1, **SIZES)


@pytest.mark.parametrize("made", [of_megatron, of_torch])
def test_weights_may_change_at_a_state(cache: Path, made: Any) -> None:
    def mixed(weight: float) -> Any:
        return made({cache: 3.0, cache / ".." / cache.name: weight})

    before = mixed(1.0)
    for _ in itertools.islice(before, 5):
        pass
    state = before.state_dict()
    after = mixed(7.0)
    with pytest.raises(errors.OtherWeightsError, match="reweight"):
        after.load_state_dict(state)
    after.load_state_dict(state, reweight=True)
    for _ in itertools.islice(after, 5):
        pass
    assert sum(after.state_dict()["given"]) == sum(state["given"]) + 10


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_batch_stays_until_there_is_memory_for_its_form(
    cache: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    def starved(*_: Any) -> Any:
        raise MemoryError

    batches, expected = of_megatron(cache, layout=layout), of_megatron(cache, layout=layout)
    for step in range(20):
        state = batches.state_dict()
        assert state == expected.state_dict()
        if step % 3 == 1:
            with monkeypatch.context() as patch:
                patch.setattr(megatron, "convert", starved)
                for _ in range(2):
                    with pytest.raises(MemoryError):
                        next(batches)
                    assert batches.state_dict() == state
        if step % 6 == 4:
            # Whoever loads a state begins there.
            batches.load_state_dict(state)
        assert next(batches)["sample_ids"] == next(expected)["sample_ids"]


def test_a_data_set_goes_on_after_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(*_: Any) -> Any:
        raise MemoryError

    batches, expected = iter(of_torch(cache)), iter(of_torch(cache))
    for step in range(6):
        if step % 2:
            with monkeypatch.context() as patch:
                patch.setattr(stoker.Reader, "next", starved)
                with pytest.raises(MemoryError):
                    next(batches)
        assert next(batches)["sample_ids"] == next(expected)["sample_ids"]


def test_known_borders_change_nothing(cache: Path) -> None:
    seen = 0
    with stoker.Reader(cache, layout="packed", tensors="torch", **SIZES) as reader:
        for batch in reader:
            assert batch.borders == batch["cu_seqlens"].tolist()
            one, other = convert(batch, 4), convert(batch, 4, 0, batch.borders)
            assert one.keys() == other.keys()
            for name, value in one.items():
                assert torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
            seen += 1
    assert seen > 5
    with stoker.Reader(cache, **SIZES) as reader:
        assert reader.next().borders is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_megatrons_device_is_the_readers(cache: Path) -> None:
    for device, name in (("cuda:0", "cuda:0"), (1, "cuda:1"), (torch.device("cuda", 2), "cuda:2")):
        with pytest.raises(errors.DeviceError, match=name):
            of_megatron(cache, device=device)
    for device in (None, "cpu", torch.device("cpu")):
        assert next(of_megatron(cache, device=device))["tokens"].device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_megatrons_batches_on_a_gpu(cache: Path, layout: str) -> None:
    there, here = of_megatron(cache, device="cuda", layout=layout), of_megatron(cache, layout=layout)
    for one, other in itertools.islice(zip(there, here), 20):
        assert one.keys() == other.keys()
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert one[name].is_cuda and torch.equal(one[name].cpu(), value), name
            else:
                assert one[name] == value
        assert there.state_dict() == here.state_dict()
