"""The builder from Python: the options of the command `stoker`, with underscores, and its JSON as dicts.

Owns nothing but the spelling: defaults and checks are the command's own, so that both always mean the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _stoker
from .errors import ConfigError


def build(
    input: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    image_root: str | os.PathLike[str] | None = None,
    schema: str | None = None,
    image_tag: str | None = None,
    profile: str | None = None,
    transformers: int | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    max_tokens: int | None = None,
    overlong: str | None = None,
    label_rule: str | None = None,
    seed: int | None = None,
    partitions: int | None = None,
    shard_bytes: int | str | None = None,
    split: Mapping[str, str | float] | Iterable[str] | None = None,
    on_reject: str | None = None,
    max_rejects: int | str | None = None,
    threads: int | None = None,
    memory_budget: int | str | None = None,
    s3_endpoint: str | None = None,
    allow_bucket: str | Iterable[str] | None = None,
    worker: int | str | Iterable[int] | None = None,
    workers: int | None = None,
    restart: bool = False,
    prune: bool = False,
    dry_run: bool = False,
    progress: bool | Callable[[dict[str, Any]], object] = True,
) -> dict[str, Any]:
    """Build a cache, or go on with an unfinished build of the same thing, and give what `stoker build --json` prints.

    The arguments are the command's options (`stoker build --help`); None takes the command's default. `split` is
    a mapping of names to shares (0.005 or "0.5%") or a list of "NAME=SHARE".
    Ctrl-C stops the build; what is done stays, and the same call goes on. With `worker` (a number from 0, several, or "auto"
    for what the launcher's environment says) and `workers` only these workers' parts are built, for `commit` to put together.
    `progress` shows a line on stderr; or it is a function that is called in this thread, a few times a second, with a
    dict of counts: `stage` ("start", "fetch inputs", "plan", "build", "commit"), `done` of `total` in it (bytes, in "build"
    images and records), and `images`, `records`, `bytes_in`, `bytes_out` and `rejects` so far. An exception that it
    raises stops the build like Ctrl-C.
    """
    args = _build_args(
        {
            "input": input,
            "model": model,
            "output": output,
            "image_root": image_root,
            "schema": schema,
            "image_tag": image_tag,
            "profile": profile,
            "transformers": transformers,
            "min_pixels": min_pixels,
            "max_pixels": max_pixels,
            "max_tokens": max_tokens,
            "overlong": overlong,
            "label_rule": label_rule,
            "seed": seed,
            "partitions": partitions,
            "shard_bytes": shard_bytes,
            "split": split,
            "on_reject": on_reject,
            "max_rejects": max_rejects,
            "threads": threads,
            "memory_budget": memory_budget,
            "s3_endpoint": s3_endpoint,
            "allow_bucket": allow_bucket,
            "worker": worker if worker is None or isinstance(worker, (int, str)) else ",".join(map(str, worker)),
            "workers": workers,
            "restart": restart,
            "prune": prune,
            "dry_run": dry_run,
        }
    )
    report = (lambda text: progress(parsed(text))) if callable(progress) else None
    return parsed(_stoker.build(args, _trial(), progress is True, report))


def commit(
    parts: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str],
    prune: bool = False,
    s3_endpoint: str | None = None,
) -> dict[str, Any]:
    """Put the parts of several workers together in the folder `output`, and give what `stoker commit --json` prints.

    `parts` are the output folders of part builds, or copies of them without shards, also at s3://; `output` may be one of them. Its
    `placement`, the partitions of each worker, is the `placement` of a `Reader` if worker k's part is on node k.
    """
    args = _given({"output": output, "s3-endpoint": s3_endpoint}) + ["--prune"] * prune
    return parsed(_stoker.commit([*args, "--", *_several(parts)]))


def pack(
    cache: str | os.PathLike[str],
    *,
    max_tokens: int,
    name: str | None = None,
    max_patches: int | None = None,
    max_samples: int | None = None,
    by_modality: bool = False,
    strategy: str | None = None,
    overlong: str | None = None,
    seed: int | None = None,
    threads: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Plan the samples of a cache into packs of at most `max_tokens` tokens, and give what `stoker pack --json` prints.

    The arguments are the command's options (`stoker pack --help`); None takes the command's default. A table of the
    same name and options is found again.
    """
    options = {
        "max-tokens": max_tokens,
        "name": name,
        "max-patches": max_patches,
        "max-samples": max_samples,
        "strategy": strategy,
        "overlong": overlong,
        "seed": seed,
        "threads": threads,
    }
    args = _given(options) + ["--by-modality"] * by_modality
    return parsed(_stoker.pack([*args, "--", os.fspath(cache)], progress))


def place(
    cache: str | os.PathLike[str],
    *,
    nodes: int,
    current: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Decide which of `nodes` nodes holds which partition of a cache, as `stoker place` does.

    Gives the table as `placement`, a list of partitions for each node, with the `bytes` of each node, and how much moves away from
    the table in the file `current`. `output` is a file that the table is written to, for `sync`; it may be `current`.
    """
    args = _given({"nodes": nodes, "current": current})
    report = parsed(_stoker.place([*args, "--", os.fspath(cache)]))
    if output is not None:
        with open(output, "w", encoding="ascii") as file:
            file.write(json.dumps(report["placement"], separators=(",", ":")) + "\n")
    return report


def push(
    cache: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    level: int | None = None,
    threads: int | None = None,
    replace: bool = False,
    s3_endpoint: str | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Copy a cache, or the share of one that this node holds, to `s3://bucket/prefix` or a folder: what `stoker push --json` prints."""
    options = {"level": level, "threads": threads, "s3-endpoint": s3_endpoint}
    args = _given(options) + ["--replace"] * replace
    return parsed(_stoker.push([*args, "--", os.fspath(cache), os.fspath(destination)], progress))


def sync(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    node: int | None = None,
    nodes: int | None = None,
    placement: str | os.PathLike[str] | None = None,
    max_disk: int | str | None = None,
    prune: bool = False,
    threads: int | None = None,
    s3_endpoint: str | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Bring node `node`'s share of a cache (without it everything) from where it was pushed to: what `stoker sync --json` prints.

    `placement` is the file that `stoker place` has printed, or `place` has written; else the cache is shared out evenly over `nodes`. The same call goes
    on after an interruption.
    """
    options = {
        "node": node,
        "nodes": nodes,
        "placement": placement,
        "max-disk": max_disk,
        "threads": threads,
        "s3-endpoint": s3_endpoint,
    }
    args = _given(options) + ["--prune"] * prune
    return parsed(_stoker.sync([*args, "--", os.fspath(source), os.fspath(destination)], progress))


def repair(
    cache: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    *,
    rebuild: Mapping[str, Any] | None = None,
    threads: int | None = None,
    s3_endpoint: str | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Make damaged and missing files of a cache good again, and give what `stoker repair --json` prints.

    Good bytes come from `source`, where the cache was pushed to; or, with `rebuild`, from the inputs: the arguments that
    `build` was given, all but `output`. Damage that remains raises nothing: it stands in the report, whose `sound` is then False.
    """
    if (source is None) == (rebuild is None):
        raise ConfigError("a repair takes source or rebuild", "give one of them")
    args = _given({"from": source, "threads": threads, "s3-endpoint": s3_endpoint}) + [os.fspath(cache)]
    if rebuild is not None:
        args += ["--rebuild", "--", *_build_args(rebuild)]
    return parsed(_stoker.repair(args, _trial(), progress))


def verify(cache: str | os.PathLike[str], *, deep: bool = False, progress: bool = True) -> dict[str, Any]:
    """Check a cache and give what `stoker verify --json` prints.

    Damage raises nothing: it stands in the report, whose `sound` is then False.
    """
    return parsed(_stoker.verify(os.fspath(cache), deep, progress))


def inspect(
    cache: str | os.PathLike[str],
    *,
    sample: str | None = None,
    row: int | None = None,
    image: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """What a cache holds or, with `sample` (its id) or `row` (its number), one sample of it.

    `image` writes the sample's picture back from its patches as a PNG file, as `stoker inspect` does.
    """
    if sample is not None and row is not None:
        raise ConfigError("sample and row both name a sample", "give one of them")
    if image is not None and sample is None and row is None:
        raise ConfigError("image needs a sample", "give sample or row")
    if row is not None and row < 0:
        raise ConfigError(f"no row `{row}`", "rows count from 0")
    return parsed(_stoker.inspect(os.fspath(cache), sample, row, None if image is None else os.fspath(image)))


def stats(
    cache: str | os.PathLike[str],
    *,
    balance: bool = False,
    ranks: int | None = None,
    pack: str | None = None,
    batch_size: int | None = None,
    nodes: int | None = None,
    split: str | None = None,
) -> dict[str, Any]:
    """Distributions of tokens, labels, patches and image sizes, as `stoker stats --json` prints them.

    With `balance` instead how even tokens and patches would be over so many `ranks`; the other arguments are for that, as
    the command's options are (`stoker stats --help`), and None takes the command's default.
    """
    options = {"ranks": ranks, "pack": pack, "batch-size": batch_size, "nodes": nodes, "split": split}
    args = _given(options) + ["--balance"] * balance
    return parsed(_stoker.stats([*args, "--", os.fspath(cache)]))


def parsed(text: str) -> dict[str, Any]:
    """One of the native half's JSON objects."""
    value: dict[str, Any] = json.loads(text)
    return value


def _trial() -> list[str]:
    """The command of a child that tries an image."""
    return [sys.executable, "-m", "stoker"]


def _build_args(options: Mapping[str, Any]) -> list[str]:
    """The arguments of `build` as those of the command: several values of one option each by itself, True as a flag."""
    args = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, Mapping):
            value = [f"{key}={share}" for key, share in value.items()]
        if value is True:
            args.append(f"--{option}")
        elif value is False or value is None or isinstance(value, (int, float, str, os.PathLike)):
            args += _given({option: None if value is False else value})
        else:
            args += [word for one in value for word in _given({option: one})]
    return args


def _given(options: Mapping[str, Any]) -> list[str]:
    """The options that are not None, in one word each, so that a value that begins with a dash is a value."""
    given = {name: value for name, value in options.items() if value is not None}
    return [f"--{name}={value if isinstance(value, (int, float, str)) else os.fspath(value)}" for name, value in given.items()]


def _several(values: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    if isinstance(values, (str, os.PathLike)):
        values = [values]
    return [os.fspath(value) for value in values]
