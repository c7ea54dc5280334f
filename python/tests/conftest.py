"""What the tests share: a cache built once, by the package itself, from the records that ship."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import stoker

# A shell that starts jobs in the background lets them ignore Ctrl-C, and Python then leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "sft"
MODEL = ROOT / "tests" / "models" / "tiny"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray comes last: its threads outlive it in this process, which other tests fork."""
    items.sort(key=lambda item: item.path.name == "test_ray.py")


@pytest.fixture(scope="session")
def build_options() -> dict:
    """Options of a build that takes a second: three of the 34 records are broken on purpose."""
    return {"model": MODEL, "max_rejects": "20%", "progress": False}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory, build_options: dict) -> Path:
    """A cache of 31 samples, with pictures of at most 64 x 64 pixels so that tests are quick."""
    output = tmp_path_factory.mktemp("cache") / "cache"
    stoker.build(SOURCE, output=output, min_pixels=1024, max_pixels=4096, partitions=2, **build_options)
    return output


@pytest.fixture
def copy_cache(tmp_path: Path) -> Callable[[Path], Path]:
    """Makes a copy that a test may damage."""
    return lambda cache: shutil.copytree(cache, tmp_path / "copy")
