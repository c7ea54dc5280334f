"""A micro-batch: a mapping of tensors that share the memory the reader filled.

Owns the views. Invariant: a view keeps its memory alive, so a batch and what was made of it stay valid however long
they are kept; the memory goes back to the reader when the last of them is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import _stoker


class Batch(Mapping[str, Any]):
    """One micro-batch of this rank. The schema is the same for every batch: what is absent is an empty tensor.

    As a mapping it holds torch tensors or NumPy arrays, as the reader was asked for; `as_torch` and `as_numpy` give
    either. `n_loss_tokens` counts the loss tokens of the whole global batch, over all ranks. NumPy has no bfloat16:
    such an array holds the same bits as uint16.
    """

    __slots__ = ("_device", "_native", "_torch", "_values")

    def __init__(self, native: _stoker.Batch, torch: bool, device: str = "cpu") -> None:
        self._native = native
        self._torch = torch
        self._device = device
        self._values: dict[str, Any] | None = None

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

    def as_numpy(self) -> dict[str, Any]:
        """A dict of arrays over the batch's own memory."""
        values: dict[str, Any] = {name: np.asarray(tensor) for name, tensor, _ in self._native.tensors()}
        return self._with_plain(values)

    def as_torch(self) -> dict[str, Any]:
        """A dict of tensors over the batch's own memory, or copies of them on the reader's device."""
        import torch

        values: dict[str, Any] = {}
        for name, tensor, dtype in self._native.tensors():
            value = torch.from_numpy(np.asarray(tensor))
            if dtype == "bfloat16":
                value = value.view(torch.bfloat16)
            values[name] = value if self._device == "cpu" else value.to(self._device)
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
        shapes = ", ".join(f"{name} {dtype}{list(tensor.shape)}" for name, tensor, dtype in self._native.tensors())
        return f"<stoker.Batch of epoch {self.epoch}, position {self.position}: {shapes}>"
