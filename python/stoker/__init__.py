"""Stoker keeps GPUs fed: it prepares a vision-language training set once, and feeds training from it.

`build`, `commit`, `pack`, `verify`, `inspect` and `stats` make and check a cache; `place`, `push`, `sync` and `repair` spread it; `Reader` reads it, `Monitor` watches a reader.
`stoker.torch`, `stoker.megatron` and `stoker.ray` are imported by those who use them; nothing else imports torch or Ray.
"""

from __future__ import annotations

from . import errors
from ._batch import Batch
from ._build import build, commit, inspect, pack, place, push, repair, stats, sync, verify
from ._monitor import Monitor
from ._reader import Reader
from ._stoker import __version__
from .errors import StokerError

__all__ = ["Batch", "Monitor", "Reader", "StokerError", "__version__", "build", "commit", "errors", "inspect", "pack", "place", "push", "repair", "stats", "sync", "verify"]
