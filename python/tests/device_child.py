"""Reads a cache onto the stub driver's GPU, without a torch that knows GPUs, and compares with the host.

Run by test_device.py with the stub on the library path. Stands in for torch's allocator and current stream only.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import torch

import stoker
from stoker import _device

DRIVER = ctypes.CDLL("libcuda.so.1")
BITS = {"uint8": np.uint8, "int32": np.int32, "int64": np.int64, "float32": np.float32, "bfloat16": np.uint16}


def call(name: str, *arguments: object) -> None:
    code = getattr(DRIVER, name)(*arguments)
    assert code == 0, f"{name} says {code}"


class Tensor:
    """Memory of the GPU that held something else."""

    def __init__(self, shape: list[int], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        self._bytes = int(np.prod(shape)) * np.dtype(BITS[dtype]).itemsize
        self._address = ctypes.c_uint64()
        if self._bytes:
            call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(self._bytes))
            old = np.full(self._bytes, 0xA5, np.uint8)
            call("cuMemcpyHtoDAsync_v2", self._address, old.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(self._bytes), STREAM)
            call("cuStreamSynchronize", STREAM)

    def data_ptr(self) -> int:
        return self._address.value

    def numpy(self) -> np.ndarray:
        array = np.zeros(self.shape, BITS[self.dtype])
        if self._bytes:
            call("cuMemcpyDtoHAsync_v2", array.ctypes.data_as(ctypes.c_void_p), self._address, ctypes.c_size_t(self._bytes), STREAM)
            call("cuStreamSynchronize", STREAM)
        return array

    def free(self) -> None:
        if self._bytes:
            call("cuMemFree_v2", self._address)


def bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def compare(cache: str, **options: object) -> int:
    """Two epochs, with the second reader resumed on the way; returns how many batches there were."""
    options = {"global_batch_size": 4, "micro_batch_size": 2, "rank": 0, "world_size": 1, "tensors": "torch", **options}
    count = 0
    with stoker.Reader(cache, device="cuda:0", **options) as there, stoker.Reader(cache, **options) as here:
        for _ in range(2):
            for one, other in zip(there, here, strict=True):
                assert there.state_dict() == here.state_dict()
                assert list(one) == list(other) and repr(one) == repr(other)
                for name, value in other.items():
                    if not isinstance(value, torch.Tensor):
                        assert one[name] == value, name
                        continue
                    tensor = one[name]
                    assert (tensor.shape, tensor.dtype) == (list(value.shape), str(value.dtype).removeprefix("torch."))
                    np.testing.assert_array_equal(tensor.numpy(), bits(value), name)
                    tensor.free()
                count += 1
                if count == 3:
                    there.load_state_dict(here.state_dict())
        assert there.stats()["batches"] >= count
    return count


def starve(cache: str, layout: str) -> int:
    """An epoch in which torch lacks memory for one tensor of each batch after another; returns how often."""
    options = {"global_batch_size": 2, "micro_batch_size": 2, "rank": 0, "world_size": 1, "tensors": "torch", "layout": layout}
    made: list[Tensor] = []
    limit, failures = 0, 0

    def empty(shape: list[int], dtype: str, device: str) -> Tensor:
        if len(made) == limit:
            raise torch.OutOfMemoryError
        made.append(Tensor(shape, dtype))
        return made[-1]

    enough, _device.empty = _device.empty, empty
    with stoker.Reader(cache, device="cuda:0", **options) as there, stoker.Reader(cache, **options) as here:
        for other in here:
            before = there.state_dict()
            for limit in range(len([value for value in other.values() if isinstance(value, torch.Tensor)])):
                try:
                    there.next()
                except torch.OutOfMemoryError:
                    failures += 1
                assert there.state_dict() == before
                while made:
                    made.pop().free()
            limit = 100
            one = there.next()
            assert one is not None and there.state_dict() == here.state_dict()
            assert one.borders == other.borders
            np.testing.assert_array_equal(one["input_ids"].numpy(), other["input_ids"].numpy())
            while made:
                made.pop().free()
        assert there.next() is None
    _device.empty = enough
    return failures


def fail(cache: str) -> None:
    """The driver fails while a batch is written: nothing more comes until a state is loaded."""
    options = {"global_batch_size": 2, "micro_batch_size": 2, "rank": 0, "world_size": 1, "tensors": "torch"}
    with stoker.Reader(cache, device="cuda:0", **options) as there, stoker.Reader(cache, **options) as here:
        while True:
            before = there.state_dict()
            try:
                there.next()
            except stoker.errors.DeviceError as error:
                first = error
                break
            here.next()
        assert there.state_dict() == before == here.state_dict()
        for _ in range(2):
            try:
                there.next()
            except stoker.errors.StoppedError as error:
                assert first.message in error.message
            else:
                raise AssertionError("a batch came after an error")
        there.load_state_dict(before)
        one, other = there.next(), here.next()
        np.testing.assert_array_equal(one["input_ids"].numpy(), other["input_ids"].numpy())


if __name__ == "__main__":
    context, STREAM = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", ctypes.byref(STREAM), 1)
    _device.empty = lambda shape, dtype, device: Tensor(shape, dtype)
    _device.stream = lambda device: STREAM.value
    if sys.argv[2] == "compare":
        for dtype in ("uint8", "float32", "bfloat16"):
            for layout in ("padded", "packed"):
                print(compare(sys.argv[1], dtype=dtype, layout=layout, sample_ids=True))
    elif sys.argv[2] == "starve":
        for layout in ("padded", "packed"):
            print(starve(sys.argv[1], layout))
    else:
        fail(sys.argv[1])
    call("cuStreamDestroy_v2", STREAM)
    call("cuCtxSetCurrent", None)
    call("cuDevicePrimaryCtxRelease_v2", 0)
