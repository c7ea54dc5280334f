"""Ranks and nodes: what is given, what torchrun says, and what is refused."""

from __future__ import annotations

import pytest

from stoker import _world
from stoker.errors import ConfigError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ({}, {}, (0, 1, 0, 1)),
        ({}, TORCHRUN, (5, 8, 1, 2)),
        ({}, {"RANK": "3", "WORLD_SIZE": "4"}, (3, 4, 0, 1)),
        ({"node_rank": 0, "num_nodes": 1}, TORCHRUN, (5, 8, 0, 1)),
        ({"rank": 1, "world_size": 2}, TORCHRUN, (1, 2, 0, 1)),
        ({"rank": 1, "world_size": 2, "node_rank": 1, "num_nodes": 2}, TORCHRUN, (1, 2, 1, 2)),
        ({}, {**TORCHRUN, "GROUP_RANK": "0"}, (5, 8, 0, 2)),
    ],
)
def test_who_reads(given: dict, environment: dict, expected: tuple) -> None:
    assert _world.find(**given, environment=environment) == expected


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        ({"rank": 1}, {}),
        ({"world_size": 1}, {}),
        ({"num_nodes": 1}, {}),
        ({}, {"RANK": "one"}),
        ({}, {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "3"}),
    ],
)
def test_half_a_world_is_refused(given: dict, environment: dict) -> None:
    with pytest.raises(ConfigError):
        _world.find(**given, environment=environment)
