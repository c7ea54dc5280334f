"""The reader: deterministic, elastic, resumable batches for one rank.

Owns the argument spelling and the iterator protocol; what is in a batch, and in which order, is the native half's.
"""

from __future__ import annotations

import json
import numbers
import operator
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Union

from . import _device, _stoker, _world
from ._batch import Batch
from ._build import parsed
from ._options import listed, number, path, paths, refused, whole
from .errors import ConfigError, DamagedCursorError, StokerError

Path = Union[str, "os.PathLike[str]"]


class Reader:
    """Reads one rank's micro-batches of a cache, or of a mixture of caches.

    cache               a cache's folder, a list of them (each counts by its size), or a mapping of folders to weights
    global_batch_size   samples of one optimiser step over all ranks; a multiple of world_size * micro_batch_size
    micro_batch_size    samples that this rank gets at a time
    split               the split to read
    rank, world_size    this data-parallel rank and their number; by default what torchrun says, else one
    node_rank, num_nodes  the same of nodes; by default torchrun's if the ranks are
    seed                seed of the order
    shuffle             "full", "shard" or "none"
    order               "random", or "length": samples of about one length follow each other, in windows of the shuffled order
    tail                "even": equal shares of each partition; "all": every sample exactly once
    last                what becomes of an epoch's short last batch: "drop", "pad" or "error"
    balance             "cost": every rank gets about as many tokens and patches of a global batch; "none": samples are dealt
                        to ranks as they come
    modalities          "same": in each micro-step all ranks have at least one image or none has; "any": it does not matter
    dummy_image         in a micro-step in which some rank has an image, a rank without gets one of one block, outside the
                        loss, as a row or segment of its own: for jobs whose ranks must all run the vision tower
    placement           what each node holds, if not everything: a list for each node of partitions, or of pairs
                        (cache's place in the list, partition)
    device              where torch tensors go: "cpu", or "cuda:N"; on a GPU the next batch is copied while one is
                        used, and a batch takes memory of torch's
    dtype               of pixel_values: "float32" (bit-exact), "bfloat16", or "uint8" for the patches as stored
    pack                the pack table whose packs are read instead of samples, as `stoker pack` named it: all sizes and
                        positions then count packs, and each fills the table's token budget in one packed row
    layout              "padded" (default): a row a sample, padded right; "packed": one row with cu_seqlens, which
                        packs always are
    multiple_of         padded rows have a multiple of so many tokens
    position_pad        position ids of padding: 0 as transformers 5, 1 as transformers 4
    prefetch_bytes      bound on bytes read ahead, such as 1 << 30 or "1GiB"; by default 2 GiB, or an eighth of the
                        memory if that is less
    prefetch_batches    bound on batches read ahead; 0 makes each when it is asked for
    threads             threads that read and put together
    backend             how files are read: "pread", "direct" (past the page cache) or "mmap" (fast, but a file that
                        shrinks meanwhile ends the process)
    verify              "first-read", "always" or "off": when rows are compared with their checksums
    sample_ids          whether batches carry the ids of their samples, "" for padding; packed ones have one for each
                        segment of cu_seqlens
    fallback            a copy of the cache, as `stoker push` made it ("s3://bucket/prefix") or a folder, that the shards which
                        this node lacks are brought from, ahead of use; of a mixture a list, one for each cache or None, or
                        a mapping of the caches' folders
    cache_disk          bound on the bytes of brought shards, such as "500GiB"; needed with a fallback
    cache_folder        where they lie, shared by the ranks of a node; by default the folder "fallback" in that of the
                        first cache that lacks something
    remote_timeout      seconds that a batch waits for a shard before that is a RemoteError; by default 300
    s3_endpoint         of the fallbacks, for servers other than Amazon's; by default what the AWS settings say
    tensors             "torch", "numpy", or "auto": torch if it was imported before the reader was opened

    A reader goes on for ever: each `for` loop over it ends with an epoch, and the next one begins the next epoch.
    A loop that is left early goes on where it stopped, and so does a reader with the state of another.
    """

    def __init__(
        self,
        cache: Path | Iterable[Path] | Mapping[Path, float],
        *,
        global_batch_size: int,
        micro_batch_size: int,
        split: str = "train",
        rank: int | None = None,
        world_size: int | None = None,
        node_rank: int | None = None,
        num_nodes: int | None = None,
        seed: int = 0,
        shuffle: str = "full",
        order: str = "random",
        tail: str = "even",
        last: str = "drop",
        balance: str = "cost",
        modalities: str = "any",
        dummy_image: bool = False,
        placement: Sequence[Iterable[int | tuple[int, int]]] | None = None,
        device: Any = "cpu",
        dtype: str = "float32",
        pack: str | None = None,
        layout: str | None = None,
        multiple_of: int = 1,
        position_pad: int = 0,
        prefetch_bytes: int | str | None = None,
        prefetch_batches: int | None = None,
        threads: int | None = None,
        backend: str | None = None,
        verify: str = "first-read",
        sample_ids: bool = False,
        fallback: Path | Iterable[Path | None] | Mapping[Path, Path] | None = None,
        cache_disk: int | str | None = None,
        cache_folder: Path | None = None,
        remote_timeout: float | None = None,
        s3_endpoint: str | None = None,
        tensors: str = "auto",
    ) -> None:
        self._world = _world.find(rank, world_size, node_rank, num_nodes)
        if tensors not in ("auto", "torch", "numpy"):
            raise ConfigError(f"tensors are auto, torch or numpy: `{tensors}`")
        self._torch = tensors == "torch" or (tensors == "auto" and sys.modules.get("torch") is not None)
        self._device = str(device)
        if self._device != "cpu" and not self._torch:
            raise ConfigError(f"NumPy has no arrays on `{device}`", 'add tensors="torch"')
        gpu = _device.ordinal(self._device)
        if gpu is not None:
            self._device = f"cuda:{gpu}"
        self._split = split
        caches = _weighted(cache)
        options = {
            "caches": caches,
            "fallbacks": _fallbacks(fallback, [path for path, _ in caches]),
            "cache_disk": None if cache_disk is None else str(cache_disk),
            "cache_folder": None if cache_folder is None else path("cache_folder", cache_folder, "leave it out, or name a folder"),
            "remote_timeout": remote_timeout,
            "s3_endpoint": s3_endpoint,
            "split": split,
            "global_batch_size": global_batch_size,
            "micro_batch_size": micro_batch_size,
            **self._world._asdict(),
            "seed": seed,
            "shuffle": shuffle,
            "order": order,
            "tail": tail,
            "last": last,
            "balance": balance,
            "modalities": modalities,
            "dummy_image": dummy_image,
            "placement": _placed(placement),
            "dtype": dtype,
            "pack": pack,
            "layout": layout,
            "multiple_of": multiple_of,
            "position_pad": position_pad,
            "prefetch_bytes": None if prefetch_bytes is None else str(prefetch_bytes),
            "prefetch_batches": prefetch_batches,
            "threads": threads,
            "backend": backend,
            "verify": verify,
            "sample_ids": sample_ids,
            "gpu": gpu,
        }
        try:
            self._native = _stoker.Reader(options)
        except TypeError as error:
            # The native half names the field; people know it as an argument and want to see what they gave.
            name = str(error).rpartition(".")[2]
            raise refused(name, options.get(name), "help(stoker.Reader) says what it may be") from error

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the epoch, from where the reader is."""
        return _Epoch(self)

    def __len__(self) -> int:
        """Micro-batches that this rank gets in an epoch."""
        return self._native.epoch_batches()

    def next(self) -> Batch | None:
        """The next batch, or None where an epoch ends; the call after that begins the next epoch.

        If torch has no memory for a batch on a GPU its error is raised, and the next call gives that same batch.
        """
        while True:
            native = self._native.next()
            if not isinstance(native, _stoker.DeviceBatch):
                return None if native is None else Batch(native, self._torch)
            values = _device.written(self._native, native, self._device)
            if values is not None:
                return Batch(native, self._torch, values)

    def state_dict(self) -> dict[str, Any]:
        """Where the reader is, as at most 1 KiB of plain data: what was delivered, not what was read ahead.

        Taken between two global batches it resumes with any number of ranks and nodes and any batch sizes, and is the
        same on all ranks; taken inside one it resumes in the same geometry only.
        """
        return parsed(self._native.cursor())

    def load_state_dict(self, state: Mapping[str, Any], *, reweight: bool = False) -> None:
        """Go on where the reader was whose state this is. Raises a CursorError if that is not possible here.

        With reweight=True the weights of a mixture may have been others: this reader's apply from here on, and each cache
        goes on in its own epoch where it was.
        """
        try:
            # Some checkpoints give whole numbers back as tensors or NumPy's.
            text = json.dumps(dict(state), default=operator.index)
        except (TypeError, ValueError) as error:
            raise DamagedCursorError(f"a state is what state_dict() gave, not this: {error}") from error
        self._native.restore(text, reweight)

    def seek(self, consumed_samples: int) -> None:
        """Go on after so many samples (with `pack`: packs) of all ranks, for trainers that keep only a counter."""
        self._native.seek(whole("consumed_samples", consumed_samples, "give the samples that all ranks have consumed", 0))

    def plan(self) -> list[dict[str, Any]]:
        """What each node will have to bring from a fallback in what is left of the epoch: all of it before the first batch.

        For each node: units, how many it reads without holding them; partitions, pairs (cache's place in the list,
        partition) that these are of; shards and bytes, each once: what is brought at most where cache_disk has room for
        them; bytes_at_most, the same where it has not. Not too low while cache_disk has room for the shards of one global batch:
        which images a sample shows is not known before it is read, so that all image shards of its partition count. What this node lacks is seen on its disk, what others lack is
        the placement's to say. Takes a time that grows with the samples of the epoch; meanwhile the reader can be used, and Ctrl-C
        ends it.
        """
        plan: list[dict[str, Any]] = json.loads(self._native.plan())
        return plan

    def stats(self) -> dict[str, Any]:
        """What the reader did and waited for so far."""
        return parsed(self._native.stats())

    def close(self) -> None:
        """End the reader's threads. Batches that were delivered stay valid."""
        self._native.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a stoker.Reader stays in the process that opened it; send its state_dict() and open another")

    def __repr__(self) -> str:
        who = f"rank {self._world.rank} of {self._world.world_size}"
        try:
            where = "epoch {}, position {}".format(*self._native.place())
        except StokerError as error:
            where = error.message
        return f"<stoker.Reader of split {self._split}, {who}: {where}>"


class _Epoch:
    """One loop over a reader: once it has ended it stays ended, whatever the reader does after."""

    __slots__ = ("_ended", "_reader")

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._ended = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = None if self._ended else self._reader.next()
        if batch is None:
            self._ended = True
            raise StopIteration
        return batch


def _weighted(cache: Path | Iterable[Path] | Mapping[Path, float]) -> list[tuple[str, float | None]]:
    if isinstance(cache, Mapping):
        return [(path("cache", one), number("cache", weight, "give each cache a weight", 0)) for one, weight in cache.items()]
    return [(one, None) for one in paths("cache", cache)]


_FALLBACK = 'give "s3://bucket/prefix" or a folder; of a mixture a list of them, or a mapping of the caches\' folders'


def _fallbacks(
    fallback: Path | Iterable[Path | None] | Mapping[Path, Path] | None, caches: list[str]
) -> list[str | None]:
    """One for each cache."""
    if fallback is None:
        return [None] * len(caches)
    if isinstance(fallback, Mapping):
        known = {path("fallback", cache): path("fallback", uri, _FALLBACK) for cache, uri in fallback.items()}
        strange = known.keys() - set(caches)
        if strange:
            raise ConfigError(f"a fallback of a cache that is not read: `{min(strange)}`", "name the caches as they are given")
        return [known.get(cache) for cache in caches]
    each = [fallback] if isinstance(fallback, (str, os.PathLike)) else listed("fallback", fallback, _FALLBACK)
    if len(each) != len(caches):
        raise ConfigError(
            f"{len(caches)} caches need as many fallbacks, not `{len(each)}`", "give None for those without one"
        )
    return [None if one is None else path("fallback", one, _FALLBACK) for one in each]


def _placed(placement: Sequence[Iterable[int | tuple[int, int]]] | None) -> list[list[tuple[int, int]]] | None:
    if placement is None:
        return None
    return [[_held(held) for held in listed("placement", node, _PLACEMENT)] for node in listed("placement", placement, _PLACEMENT)]


_PLACEMENT = "give a list for each node, of partitions or of pairs (cache's place in the list, partition)"


def _held(held: object) -> tuple[int, int]:
    pair = [0, held] if isinstance(held, numbers.Integral) else listed("placement", held, _PLACEMENT)
    if len(pair) != 2:
        raise refused("placement", held, _PLACEMENT)
    cache, partition = (whole("placement", value, _PLACEMENT, 0) for value in pair)
    return cache, partition
