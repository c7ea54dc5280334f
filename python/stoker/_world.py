"""Who reads: rank and size of the world and of the nodes, from the caller or from torchrun's environment.

Owns the defaults. Invariant: a pair is taken whole, from one place; half a pair is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from .errors import ConfigError


class World(NamedTuple):
    """One reading process among all, and its node among all."""

    rank: int
    world_size: int
    node_rank: int
    num_nodes: int


def find(
    rank: int | None = None,
    world_size: int | None = None,
    node_rank: int | None = None,
    num_nodes: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> World:
    """What is given, else what torchrun says, else a world of one. Nodes are torchrun's only if the ranks are too."""
    _whole("rank", rank, "world_size", world_size)
    _whole("node_rank", node_rank, "num_nodes", num_nodes)
    launched = rank is None
    if rank is None or world_size is None:
        rank, world_size = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    if node_rank is None or num_nodes is None:
        node_rank, num_nodes = 0, 1
        if launched and "LOCAL_WORLD_SIZE" in environment:
            local = _number(environment, "LOCAL_WORLD_SIZE", 1)
            if local < 1 or world_size % local:
                raise ConfigError(
                    f"{world_size} ranks are not spread evenly over nodes of `{local}`", "give node_rank and num_nodes"
                )
            num_nodes = world_size // local
            node_rank = _number(environment, "GROUP_RANK", rank // local)
    return World(rank, world_size, node_rank, num_nodes)


def _whole(first: str, one: int | None, second: str, other: int | None) -> None:
    if (one is None) != (other is None):
        raise ConfigError(f"{first} and {second} belong together", "give both or neither")


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} in the environment is no number: `{text}`") from None
