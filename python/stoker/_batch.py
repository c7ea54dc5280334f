"""A micro-batch: a mapping of tensors that share the memory the reader filled.

Owns the views. Invariant: a view keeps its memory alive, so a batch and what was made of it stay valid however long
they are kept; the memory goes back to the reader when the last of them is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import _device, _stoker


class Batch(Mapping[str, Any]):
    """One micro-batch of this rank. The schema is the same for every batch: what is absent is an empty tensor.

    As a mapping it holds torch tensors or NumPy arrays, as the reader was asked for; `as_torch` and `as_numpy` give
    either. `n_loss_tokens` counts the loss tokens of the whole global batch, over all ranks. NumPy has no bfloat16:
    such an array holds the same bits as uint16.
    """

    __slots__ = ("_native", "_torch", "_values")

    def __init__(
        self, native: _stoker.Batch | _stoker.DeviceBatch, torch: bool, values: dict[str, Any] | None = None
    ) -> None:
        self._native = native
        self._torch = torch
        self._values = None if values is None else self._with_plain(values)

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self._native.epoch

    @property
    def position(self) -> int:
        """Where the global batch begins in its epoch, in samples, or in packs."""
        return self._native.position

    @property
    def n_loss_tokens(self) -> int:
        """Loss tokens of the global batch, over all ranks."""
        return self._native.n_loss_tokens

    @property
    def borders(self) -> list[int] | None:
        """The values of cu_seqlens, which are known without waiting for a GPU; None where rows are padded."""
        if isinstance(self._native, _stoker.DeviceBatch):
            return self._native.borders()
        found = [tensor for name, tensor, _ in self._native.tensors() if name == "cu_seqlens"]
        return np.asarray(found[0]).tolist() if found else None

    def as_numpy(self) -> dict[str, Any]:
        """A dict of arrays over the batch's own memory, or of copies if that is a GPU's."""
        if isinstance(self._native, _stoker.DeviceBatch):
            values = {name: _device.fetched(self[name]) for name, _, _ in self._native.tensors()}
        else:
            values = {name: np.asarray(tensor) for name, tensor, _ in self._native.tensors()}
        return self._with_plain(values)

    def as_torch(self) -> dict[str, Any]:
        """A dict of tensors over the batch's own memory, on the reader's device."""
        if isinstance(self._native, _stoker.DeviceBatch):
            return dict(self._mapping())
        import torch

        values: dict[str, Any] = {}
        for name, tensor, dtype in self._native.tensors():
            value = np.asarray(tensor)
            if dtype == "bfloat16":
                # As int16: torch before 2.3 has no uint16.
                values[name] = torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
            else:
                values[name] = torch.from_numpy(value)
        return self._with_plain(values)

    def _with_plain(self, values: dict[str, Any]) -> dict[str, Any]:
        values.update(self._native.plain())
        return values

    def _mapping(self) -> dict[str, Any]:
        if self._values is None:
            self._values = self.as_torch() if self._torch else self.as_numpy()
        return self._values

    def __getitem__(self, name: str) -> Any:
        return self._mapping()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())

    def __repr__(self) -> str:
        if isinstance(self._native, _stoker.DeviceBatch):
            tensors = self._native.tensors()
        else:
            tensors = [(name, list(tensor.shape), dtype) for name, tensor, dtype in self._native.tensors()]
        shapes = ", ".join(f"{name} {dtype}{shape}" for name, shape, dtype in tensors)
        return f"<stoker.Batch of epoch {self.epoch}, position {self.position}: {shapes}>"
