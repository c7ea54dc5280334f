"""Checks of arguments that only Python can make: paths, numbers and lists of a wrong type.

Owns the words: each ends in a ConfigError that names the argument, shows what was given, and says what to give.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable
from typing import Any

from .errors import ConfigError


def refused(name: str, value: object, hint: str) -> ConfigError:
    """The error of an argument that cannot be."""
    return ConfigError(f"{name} cannot be `{value!r}`", hint)


def path(name: str, value: object, hint: str = "give a path") -> str:
    """A path, or a URI, as text."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text:
        raise refused(name, value, hint)
    return text


def paths(name: str, values: object, hint: str = "give a path, or a list of them") -> list[str]:
    """One path, or several."""
    if isinstance(values, (str, os.PathLike)):
        return [path(name, values, hint)]
    return [path(name, value, hint) for value in listed(name, values, hint)]


def listed(name: str, values: object, hint: str) -> list[Any]:
    """Several values; a text is none."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise refused(name, values, hint)
    return list(values)


def number(name: str, value: object, hint: str, least: float) -> float:
    """A finite number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value < least:
        raise refused(name, value, hint)
    return float(value)


def whole(name: str, value: object, hint: str, least: int) -> int:
    """A whole number that is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise refused(name, value, hint)
    return int(value)
