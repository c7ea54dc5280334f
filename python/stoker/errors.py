"""What can go wrong, as a tree of exceptions under StokerError.

Each says what happened, the value last in backticks, and has a `hint` that says what to do about it where there is
something to say.
"""

from __future__ import annotations


class StokerError(Exception):
    """Anything that stoker reports. `message` says what happened, `hint` what to do about it (or None)."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class ConfigError(StokerError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class FileError(StokerError):
    """The system refused a file operation, or a file has gone meanwhile; the message names it."""


class CacheError(StokerError):
    """A cache cannot be read."""


class NotACacheError(CacheError):
    """The folder holds no manifest: no cache, or one whose build has not ended."""


class MissingFilesError(CacheError):
    """Files that the manifest names are not there; the message lists all of them."""


class DamageError(CacheError):
    """A file holds other bytes than it should; the message names file, shard and row."""


class NewerVersionError(CacheError):
    """A file of a newer major version of the format."""


class BuildError(StokerError):
    """A build cannot run, or has stopped. What is done stays: the same call goes on."""


class ModelError(BuildError):
    """The model folder cannot be used."""


class InputError(BuildError):
    """An input cannot be used."""


class FetchError(BuildError):
    """A source failed in a way that another try may mend."""


class LockedError(BuildError):
    """Another builder is writing this output."""


class UnfinishedBuildError(BuildError):
    """The output holds an unfinished build of something else."""


class DiskFullError(BuildError):
    """The output disk is full, or would be."""


class TooManyRejectsError(BuildError):
    """More records were rejected than `max_rejects` allows."""


class RemoteError(StokerError):
    """A file that this node lacks did not come from the fallback: it failed, or took longer than remote_timeout."""


class StoppedError(StokerError):
    """The reader has stopped after an earlier error; a state that is loaded starts it again."""


class CursorError(StokerError):
    """A state cannot be resumed by this reader. Nothing has changed."""


class OtherDataError(CursorError):
    """The state is of other caches, of another order of them, of another split, or of other packs."""


class OtherSeedError(CursorError):
    """The state is of another seed."""


class OtherWeightsError(CursorError):
    """The state is of a mixture with other weights."""


class OtherOrderError(CursorError):
    """The state is of another shuffle, order, tail or last."""


class GeometryError(CursorError):
    """The state was taken inside a global batch, by other ranks, nodes, batch sizes or dealing than these."""


class DamagedCursorError(CursorError):
    """The state is not as it was saved."""


class NewerCursorError(CursorError):
    """The state was saved by a newer version."""


class DeviceError(StokerError):
    """The device or its driver failed."""


class ForkError(StokerError, RuntimeError):
    """A reader was used in a process forked from the one that opened it."""
