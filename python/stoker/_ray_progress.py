"""One line on stderr for what a whole cluster does: live on a terminal, otherwise every ten seconds.

Owns the words and the rates; what is counted is the builders'.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

# Between two lines where stderr is no terminal.
PAUSE_SECONDS = 10.0

# What a builder counts in all of its stages.
COUNTS = ("images", "records", "bytes_in", "bytes_out", "rejects")


# The same, and the images and records of a build.
ALL = ("done", "total", *COUNTS)


def following(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What a builder says `now`, its items always those of the build: it counts bytes before, and one commit after."""
    if now.get("stage") == "build":
        return now
    size = before.get("total", 0) if now.get("stage") == "commit" else 0
    return {**now, "done": size, "total": size}


def added(past: dict[str, Any], doing: dict[str, Any]) -> dict[str, Any]:
    """What a node did in earlier builds and does in this one."""
    return {**doing, **{name: past.get(name, 0) + doing.get(name, 0) for name in ALL}}


def total(stage: str, nodes: dict[str, dict[str, Any]], wanted: int) -> dict[str, Any]:
    """What the nodes do together: like one builder's progress, with `nodes` and how many are `wanted` beside."""
    counts = {name: sum(doing[name] for doing in nodes.values()) for name in ALL}
    return {"stage": stage, **counts, "nodes": nodes, "wanted": wanted}


class Line:
    """The line; nothing is shown if it is not `shown`."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._live = sys.stderr.isatty()
        self._began = self._last = time.monotonic()
        self._before: dict[str, Any] = {}

    def show(self, doing: dict[str, Any]) -> None:
        """Show what the cluster does, if it is time."""
        now = time.monotonic()
        seconds = now - self._last
        if not self._shown or seconds < (0.5 if self._live else PAUSE_SECONDS):
            return
        text = words(doing, self._before, seconds, now - self._began)
        self._last, self._before = now, doing
        self._write(f"\r\x1b[K{text}" if self._live else f"{text}\n")

    def note(self, text: str) -> None:
        """Say something above the line."""
        if self._shown:
            self._write(f"\r\x1b[K{text}\n" if self._live else f"{text}\n")

    def end(self) -> None:
        """Clear the line."""
        if self._shown and self._live:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def words(doing: dict[str, Any], before: dict[str, Any], seconds: float, elapsed: float) -> str:
    """The line of `doing`, `seconds` after `before` and `elapsed` after the beginning."""

    def rate(name: str) -> float:
        # A builder that begins again counts from 0.
        return max(0.0, (doing[name] - before.get(name, 0)) / seconds)

    done, all_items = doing["done"], doing["total"]
    parts: Iterable[str] = (
        f"{doing['stage']} {100 * done / max(all_items, 1):.1f}%: {rate('records'):.0f} records/s",
        f"{rate('images'):.0f} images/s",
        f"in {_size(rate('bytes_in'))}/s",
        f"out {_size(rate('bytes_out'))}/s",
        f"{doing['rejects']} rejects",
        f"{len(doing['nodes'])} of {doing['wanted']} nodes",
    )
    text = ", ".join(parts)
    if 0 < done < all_items:
        text += f", ETA {_time(elapsed * (all_items - done) / done)}"
    return text


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
