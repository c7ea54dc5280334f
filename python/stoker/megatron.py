"""Stoker's batches as Megatron takes them.

Owns the difference between the two: labels that are shifted by one with a mask beside them, rows padded so that context
and tensor parallel ranks can cut them, and who reads. Invariant: no position learns a token of another sample.

Every pipeline stage reads for itself, on whatever host it is: positions and sample borders are needed by all.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ._batch import Batch
from ._reader import Reader
from .errors import ConfigError

#: What a label is where nothing is learnt, before and after the shift.
_IGNORED = -100


class Batches:
    """Megatron's micro-batches for this process, without end: what an external data loader's iterator gives.

    cache, global_batch_size, micro_batch_size and the other options are Reader's; rank and world_size are the
    data-parallel ones of `parallel_state` (megatron.core's by default), which context and tensor parallel ranks share.

    tensor_parallel   "every": each tensor-parallel rank reads, and the page cache is shared; "broadcast": the first
                      one reads and sends its batches to the others, or what went wrong
    consumed_samples  where to begin, as Megatron counts
    pad_id            the token id of padding
    device            where the tensors are, as Reader's: on a GPU they are uploaded ahead and turned into Megatron's
                      form there, without waiting for it. By default on the host; "broadcast" is made between
                      tensors on this device, and so needs a GPU with NCCL

    A batch holds tokens, labels, loss_mask, position_ids (3 x rows x tokens), attention_mask (None: causal, padding is
    to the right), pixel_values, image_grid_thw and n_loss_tokens, the count of the global batch. Packed ones also hold
    cu_seqlens, cu_seqlens_padded and max_seqlen. Rows, and samples in packed rows, are padded to a multiple of
    2 x context parallel size x tensor parallel size.
    """

    def __init__(
        self,
        cache: Any,
        *,
        tensor_parallel: str = "every",
        consumed_samples: int = 0,
        pad_id: int = 0,
        device: str | torch.device | None = None,
        parallel_state: Any = None,
        **options: Any,
    ) -> None:
        if tensor_parallel not in ("every", "broadcast"):
            raise ConfigError(f"tensor_parallel is every or broadcast: `{tensor_parallel}`")
        if parallel_state is None:
            parallel_state = importlib.import_module("megatron.core.parallel_state")
        self._state = parallel_state
        self._align = 2 * parallel_state.get_context_parallel_world_size()
        self._align *= parallel_state.get_tensor_model_parallel_world_size()
        # Any spelling of torch's, a number included.
        self._pad_id, self._device = pad_id, str(torch.device("cpu" if device is None else device))
        self._sends = tensor_parallel == "broadcast" and parallel_state.get_tensor_model_parallel_world_size() > 1
        self._reader: Reader | None = None
        #: A batch that is not in Megatron's form yet, and the state before it.
        self._unmade: tuple[Batch, dict[str, Any]] | None = None
        with self._told_to_all():
            if not self._sends or parallel_state.get_tensor_model_parallel_rank() == 0:
                self._reader = Reader(
                    cache,
                    rank=parallel_state.get_data_parallel_rank(),
                    world_size=parallel_state.get_data_parallel_world_size(),
                    device=self._device,
                    **{"multiple_of": self._align, "tensors": "torch", **options},
                )
                if consumed_samples:
                    self._reader.seek(consumed_samples)

    @contextlib.contextmanager
    def _told_to_all(self) -> Iterator[None]:
        """What fails on the rank that reads fails on those that wait for it, too, and not by a time-out."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        if self._sends:
            told = [error]
            _send_object(told, self._state)
            error = told[0]
        if error is not None:
            raise error

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        if not self._sends:
            return self._made()
        batch, error = None, None
        if self._reader is not None:
            try:
                batch = self._made()
            except Exception as caught:
                # The others wait for something: they get the reason instead of a time-out.
                error = caught
        batch, error = _shared(batch, error, self._state, self._device)
        if error is not None:
            raise error
        return batch

    @property
    def reader(self) -> Reader | None:
        """The reader behind it, for `stoker.Monitor` and `plan()`; None on ranks that do not read."""
        return self._reader

    def state_dict(self) -> dict[str, Any]:
        """The reader's state; empty on ranks that do not read."""
        if self._unmade is not None:
            return self._unmade[1]
        return {} if self._reader is None else self._reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, reweight: bool = False) -> None:
        """As Reader.load_state_dict. With "broadcast" each tensor-parallel rank calls it."""
        with self._told_to_all():
            if self._reader is not None:
                self._reader.load_state_dict(state, reweight=reweight)
                self._unmade = None

    def close(self) -> None:
        """End the reader's threads."""
        if self._reader is not None:
            self._reader.close()

    def _made(self) -> dict[str, Any]:
        assert self._reader is not None
        if self._unmade is None:
            before = self._reader.state_dict()
            batch = self._reader.next()
            while batch is None:
                batch = self._reader.next()
            self._unmade = batch, before
        # Without memory for it the batch stays the next one.
        batch, _ = self._unmade
        made = convert(batch.as_torch(), self._align, self._pad_id, batch.borders)
        self._unmade = None
        return made


def convert(
    batch: Mapping[str, Any], align: int, pad_id: int = 0, borders: list[int] | None = None
) -> dict[str, Any]:
    """A batch of the reader in torch tensors, as Megatron takes it.

    `borders` are the values of cu_seqlens, as Batch.borders has them: without them a packed batch on a GPU is waited for.
    """
    batch = dict(batch)
    packed = "cu_seqlens" in batch
    tokens, labels, positions = batch.pop("input_ids"), batch.pop("labels"), batch.pop("position_ids")
    batch.pop("attention_mask", None)
    shifted = torch.full_like(labels, _IGNORED)
    shifted[:, :-1] = labels[:, 1:]
    if packed:
        # Of four rows the first counts text for the Hugging Face model; Megatron takes time, height and width.
        positions = positions[-3:]
        known = batch["cu_seqlens"].tolist() if borders is None else borders
        count = known[-1]
        total = sum(-(-(end - start) // align) * align for start, end in itertools.pairwise(known))
        # All else is computed where the batch is.
        ends = batch["cu_seqlens"].long()
        shifted[:, ends[1:] - 1] = _IGNORED
        lengths = ends.diff()
        padded = (lengths + align - 1) // align * align
        starts = torch.nn.functional.pad(padded.cumsum(0), (1, 0))
        to = (starts[:-1] - ends[:-1]).repeat_interleave(lengths, output_size=count)
        to += torch.arange(count, device=ends.device)
        tokens = _spread(tokens, to, total, pad_id)
        shifted = _spread(shifted, to, total, _IGNORED)
        positions = _spread(positions, to, total, 0)
        batch["cu_seqlens_padded"] = starts.to(torch.int32)
        batch["max_seqlen"] = padded.max().to(torch.int32).reshape(1)
    learnt = shifted != _IGNORED
    return {
        **batch,
        "tokens": tokens,
        # The loss is taken of every position and masked after: an ignored label must be some token's id.
        "labels": shifted.masked_fill(~learnt, 0),
        "loss_mask": learnt.float(),
        "position_ids": positions,
        "attention_mask": None,
    }


def _spread(row: torch.Tensor, to: torch.Tensor, total: int, fill: int) -> torch.Tensor:
    """The positions of `row` at `to` in a row of `total`, `fill` elsewhere."""
    made = row.new_full((*row.shape[:-1], total), fill)
    made[..., to] = row[..., : to.numel()]
    return made


def _shared(
    batch: dict[str, Any] | None, error: Exception | None, state: Any, device: str
) -> tuple[dict[str, Any], Exception | None]:
    """The first tensor-parallel rank's batch, or its error, on all of them."""
    plan: list[Any] = [error]
    if batch is not None:
        plan += [
            (name, value.shape, value.dtype) if isinstance(value, torch.Tensor) else (name, None, value)
            for name, value in batch.items()
        ]
    told = [plan]
    _send_object(told, state)
    error, *parts = told[0]
    group, source = state.get_tensor_model_parallel_group(), state.get_tensor_model_parallel_src_rank()
    made: dict[str, Any] = {}
    for name, shape, kind in parts:
        if shape is None:
            made[name] = kind
            continue
        value = torch.empty(shape, dtype=kind, device=device) if batch is None else batch[name].contiguous()
        if value.numel():
            torch.distributed.broadcast(value, src=source, group=group)
        made[name] = value
    return made, error


def _send_object(told: list[Any], state: Any) -> None:
    """The list of the first tensor-parallel rank, on all of them."""
    group, source = state.get_tensor_model_parallel_group(), state.get_tensor_model_parallel_src_rank()
    torch.distributed.broadcast_object_list(told, src=source, group=group)
