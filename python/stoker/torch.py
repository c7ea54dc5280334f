"""Stoker's batches as a data set of torch.utils.data.

Owns the glue only. The reader reads ahead by itself, in threads that hold no lock of Python's: worker processes would
add a copy and nothing else, so they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from ._batch import Batch
from ._reader import Reader
from .errors import ConfigError


class IterableDataset(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Micro-batches as dicts of tensors: `DataLoader(dataset, batch_size=None)`, num_workers=0.

    Takes an open Reader, or what Reader takes; then it is opened at its first use. Each `iter()` gives the rest of
    the epoch. It has a state for torchdata's StatefulDataLoader, which is the reader's.
    """

    def __init__(self, reader_or_cache: Any, **options: Any) -> None:
        super().__init__()
        if isinstance(reader_or_cache, Reader):
            if options:
                raise ConfigError(f"the reader is open already, it takes no `{next(iter(options))}`")
            self._reader: Reader | None = reader_or_cache
        else:
            self._reader = None
        self._cache, self._options = reader_or_cache, options

    @property
    def reader(self) -> Reader:
        """The reader behind it."""
        if self._reader is None:
            self._reader = Reader(self._cache, **{"tensors": "torch", **self._options})
        return self._reader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if torch.utils.data.get_worker_info() is not None:
            raise ConfigError(
                "a worker process would read what others read too, and copy each batch once more",
                "use num_workers=0: the reader reads ahead in threads of its own",
            )
        # Not a generator, which would end with the first error, where the reader goes on.
        return map(Batch.as_torch, self.reader)

    def __len__(self) -> int:
        return len(self.reader)

    def state_dict(self) -> dict[str, Any]:
        """As Reader.state_dict."""
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, reweight: bool = False) -> None:
        """As Reader.load_state_dict."""
        self.reader.load_state_dict(state, reweight=reweight)
