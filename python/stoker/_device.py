"""Batches on a GPU: tensors that torch allocates and the reader writes.

Owns the agreement with torch about memory and streams. Invariant: a tensor is allocated on the stream that is current when
its batch is asked for, and written in the order of that stream; so it can be used there at once, and on another stream
once that waits for this one, as with every tensor. A batch leaves the reader once all its tensors are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _stoker
from .errors import ConfigError


def ordinal(device: str) -> int | None:
    """The number of the GPU that `device` names; None for the host."""
    kind, colon, number = device.partition(":")
    if device == "cpu":
        return None
    if kind != "cuda" or (colon and not (number.isdecimal() and int(number) < 1 << 31)):
        raise ConfigError(f"device is cpu, cuda or cuda:N: `{device}`")
    return int(number) if colon else current()


def current() -> int:
    """The GPU that torch uses by default; where torch finds none, the first: opening it says what is lacking."""
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def empty(shape: list[int], dtype: str, device: str) -> Any:
    """A tensor that holds anything."""
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


def stream(device: str) -> int:
    """The driver's handle of the stream that torch uses now."""
    import torch

    return torch.cuda.current_stream(device).cuda_stream


def written(reader: _stoker.Reader, batch: _stoker.DeviceBatch, device: str) -> dict[str, Any] | None:
    """The tensors of the reader's next batch, which are being written: nothing waits for that but their stream.

    Without memory for them the batch stays the next one. None if it is not any more, because another thread took it.
    """
    values = {name: empty(shape, dtype, device) for name, shape, dtype in batch.tensors()}
    addresses = [value.data_ptr() for value in values.values()]
    return values if reader.write(batch, addresses, stream(device)) else None


def fetched(tensor: Any) -> Any:
    """A copy as a NumPy array; bfloat16 as the same bits in uint16."""
    import torch

    if tensor.dtype == torch.bfloat16:
        # Torch before 2.3 has no uint16.
        return tensor.view(torch.int16).cpu().numpy().view(np.uint16)
    return tensor.cpu().numpy()
