"""Tensors, and the data set inside DataLoader and StatefulDataLoader."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import stoker  # noqa: E402
from stoker import _device, errors  # noqa: E402
from stoker.torch import IterableDataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

ALONE: dict[str, Any] = {"rank": 0, "world_size": 1, "global_batch_size": 4, "micro_batch_size": 2, "sample_ids": True}


@pytest.fixture
def data(cache: Path):
    data = IterableDataset(cache, **ALONE)
    yield data
    data.reader.close()


def names(batches) -> list[list[str]]:
    return [batch["sample_ids"] for batch in batches]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_tensors_have_torch_types_and_the_arrays_memory(cache: Path, dtype: str, layout: str) -> None:
    with warnings.catch_warnings(), stoker.Reader(cache, dtype=dtype, layout=layout, **ALONE) as reader:
        warnings.simplefilter("error")
        for batch in reader:
            tensors, arrays = batch.as_torch(), batch.as_numpy()
            assert isinstance(batch["input_ids"], torch.Tensor)
            assert tensors.keys() == arrays.keys() == set(batch)
            for name, value in tensors.items():
                if not isinstance(value, torch.Tensor):
                    assert value == arrays[name]
                    continue
                wanted = {"pixel_values": getattr(torch, dtype), "cu_seqlens": torch.int32}.get(name, torch.int64)
                assert value.dtype is wanted and value.is_contiguous()
                assert value.shape == arrays[name].shape
                if value.numel():
                    assert value.data_ptr() == arrays[name].__array_interface__["data"][0]
    kept = tensors["labels"]
    expected = kept.clone()
    del tensors, arrays, batch, reader
    gc.collect()
    assert torch.equal(kept, expected)


def test_bfloat16_is_float32_rounded(cache: Path) -> None:
    with stoker.Reader(cache, dtype="bfloat16", **ALONE) as bits, stoker.Reader(cache, **ALONE) as floats:
        for one, other in zip(bits, floats):
            assert torch.equal(one["pixel_values"], other["pixel_values"].to(torch.bfloat16))


def test_torch_without_uint16_has_bfloat16(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch is before 2.3."""
    taken = torch.from_numpy

    def from_numpy(array: np.ndarray) -> torch.Tensor:
        assert array.dtype != np.uint16
        return taken(array)

    monkeypatch.setattr(torch, "from_numpy", from_numpy)
    monkeypatch.delattr(torch, "uint16")
    with stoker.Reader(cache, dtype="bfloat16", **ALONE) as reader:
        batch = reader.next()
    pixels, bits = batch.as_torch()["pixel_values"], batch.as_numpy()["pixel_values"]
    assert pixels.dtype == torch.bfloat16 and pixels.numel() and bits.dtype == np.uint16
    fetched = _device.fetched(pixels)
    assert fetched.dtype == np.uint16 and np.array_equal(fetched, bits)


def test_torch_is_the_default_where_it_was_imported(cache: Path) -> None:
    with stoker.Reader(cache, **ALONE) as reader, stoker.Reader(cache, tensors="numpy", **ALONE) as other:
        assert isinstance(reader.next()["labels"], torch.Tensor)
        assert isinstance(other.next()["labels"], np.ndarray)


def test_data_loader_passes_batches_through(data: IterableDataset, cache: Path) -> None:
    loader = DataLoader(data, batch_size=None, num_workers=0)
    assert len(loader) == len(data) == 14
    with stoker.Reader(cache, **ALONE) as reader:
        for epoch in range(2):
            expected = [batch.as_torch() for batch in reader]
            got = list(loader)
            assert names(got) == names(expected)
            assert all(torch.equal(one["pixel_values"], other["pixel_values"]) for one, other in zip(got, expected))


def test_loops_go_on_where_the_last_one_stopped(data: IterableDataset, cache: Path) -> None:
    with stoker.Reader(cache, **ALONE) as reader:
        expected = names(reader)
    loader = DataLoader(data, batch_size=None)
    assert names(itertools.islice(loader, 3)) == expected[:3]
    assert names(itertools.islice(data, 2)) == expected[3:5]
    assert names(loader) == expected[5:]
    again = itertools.cycle(data)
    seen = names(itertools.islice(again, 30))
    assert seen[:14] == seen[14:28]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_are_refused_with_a_hint(cache: Path, method: str) -> None:
    data = IterableDataset(cache, **ALONE)
    loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context=method)
    with pytest.raises(errors.ConfigError, match="num_workers=0"):
        next(iter(loader))


def test_an_open_reader_can_be_the_source(cache: Path) -> None:
    with stoker.Reader(cache, **ALONE) as reader:
        data = IterableDataset(reader)
        assert data.reader is reader
        assert len(list(data)) == 14
        with pytest.raises(errors.ConfigError, match="open already"):
            IterableDataset(reader, seed=1)


@pytest.mark.parametrize("taken", [0, 1, 2, 7, 14, 15])
def test_stateful_data_loader_resumes_exactly(cache: Path, taken: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def made():
        return stateful.StatefulDataLoader(IterableDataset(cache, **ALONE), batch_size=None, num_workers=0)

    def endless(loader):
        while True:
            yield from loader

    loader = made()
    batches = endless(loader)
    names(itertools.islice(batches, taken))
    state = loader.state_dict()
    rest = names(itertools.islice(batches, 20))
    other = made()
    other.load_state_dict(state)
    assert names(itertools.islice(endless(other), 20)) == rest


def test_only_those_who_ask_import_torch(cache: Path) -> None:
    script = """
import sys, stoker
with stoker.Reader(sys.argv[1], global_batch_size=2, micro_batch_size=2, rank=0, world_size=1) as reader:
    assert type(reader.next()["labels"]).__module__ == "numpy"
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, str(cache)], check=True, timeout=60)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_batches_on_a_gpu(cache: Path) -> None:
    for dtype, layout in itertools.product(("uint8", "float32", "bfloat16"), ("packed", "padded")):
        options = {**ALONE, "dtype": dtype, "layout": layout}
        with stoker.Reader(cache, device="cuda:0", **options) as there, stoker.Reader(cache, **options) as here:
            count = 0
            for one, other in zip(there, here, strict=True):
                assert one["pixel_values"].device == torch.device("cuda:0") and list(one) == list(other)
                for name, value in other.items():
                    assert torch.equal(one[name].cpu(), value) if torch.is_tensor(value) else one[name] == value
                count += 1
            assert count == len(here) > 0
