"""The contenders, a module each, with a class `Contender`; nothing but the one that is asked for is imported.

Each is set up as its own documentation says, in one process without workers, without compression, with shards of 64 MiB.
"""

from importlib import import_module

NAMES = ["memmap", "mosaic", "litdata", "grain", "energon", "webdataset", "hf", "stoker"]


def contender(name):
    """One of NAMES, and all the modules that it needs."""
    return import_module("peers.formats." + name).Contender()
