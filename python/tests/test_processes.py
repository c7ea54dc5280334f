"""Forks, worker processes, signals and threads around a reader.

A read that never ends is a FIFO in a shard's place: opening it waits for somebody who writes.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker import errors

ALONE: dict[str, Any] = {
    "rank": 0, "world_size": 1, "global_batch_size": 4, "micro_batch_size": 2, "sample_ids": True, "tensors": "numpy",
}


def names(cache: Path) -> list[str]:
    with stoker.Reader(cache, **ALONE) as reader:
        return [name for batch in reader for name in batch["sample_ids"]]


def in_fork(work) -> int:
    """Does `work` in a fork and gives its exit code: 0 if it returned."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_fork_gets_a_clear_error_and_the_parent_goes_on(cache: Path, taken: int) -> None:
    expected = names(cache)
    reader = stoker.Reader(cache, **ALONE)
    batches = [reader.next() for _ in range(taken)]
    monitor = stoker.Monitor(reader, port=0, interval=3600)

    def child() -> None:
        for call in (reader.next, reader.state_dict, reader.stats, lambda: len(reader), lambda: reader.seek(0)):
            with pytest.raises(errors.ForkError, match="belongs to the process that opened it") as caught:
                call()
            assert "spawn" in caught.value.hint
        assert "fork" in repr(reader)
        monitor.close()
        assert all(batch["input_ids"].sum() > 0 for batch in batches)
        # Dropping touches no lock either, whatever the parent's threads held when the fork was made.
        reader.close()
        batches.clear()
        gc.collect()

    def dropping() -> None:
        nonlocal reader
        batches.clear()
        reader = None
        gc.collect()

    for _ in range(5):
        assert in_fork(child) == 0
        assert in_fork(dropping) == 0
    got = [name for batch in batches for name in batch["sample_ids"]]
    got += [name for batch in reader for name in batch["sample_ids"]]
    assert got == expected
    monitor.close()
    reader.close()


def test_a_fork_may_open_a_reader_of_its_own(cache: Path) -> None:
    expected = names(cache)
    with stoker.Reader(cache, **ALONE) as reader:
        reader.next()
        assert in_fork(lambda: _same(names(cache), expected)) == 0


def _same(got: list[str], expected: list[str]) -> None:
    assert got == expected


def test_signals_that_a_handler_takes_change_nothing(cache: Path) -> None:
    expected, taken = names(cache), []
    before = signal.signal(signal.SIGALRM, lambda *_: taken.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while len(taken) < 50:
            assert names(cache) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_worker_processes_read_the_same(cache: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    with stoker.Reader(cache, **ALONE) as reader:
        reader.next()
        with context.Pool(2) as pool:
            first, second = pool.map_async(names, [cache, cache]).get(timeout=120)
        assert first == second == names(cache)
        assert reader.next() is not None


def hanging(cache: Path, copy_cache) -> tuple[Path, list[Path]]:
    """A cache and its image shards, to be swapped for FIFOs after it was opened."""
    broken = copy_cache(cache)
    return broken, sorted(broken.glob("images-*/shards/*.arrow"))


def swap(shards: list[Path]) -> None:
    for shard in shards:
        shard.unlink()
        os.mkfifo(shard)


def release(shards: list[Path]) -> None:
    """Ends all waiting opens, now and later."""
    for shard in shards:
        os.open(shard, os.O_RDWR | os.O_NONBLOCK)


def test_other_threads_run_while_a_batch_is_waited_for(cache: Path, copy_cache) -> None:
    """The other thread alone can end the wait: if it did not get its turns, this would hang."""
    path, shards = hanging(cache, copy_cache)
    reader = stoker.Reader(path, **ALONE)
    swap(shards)
    turns = []

    def other() -> None:
        for turn in range(1000):
            turns.append(turn)
            # Asked from another thread meanwhile, the reader answers too.
            if turn % 500 == 0:
                assert reader.stats()["batches"] == 0
        release(shards)

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(stoker.StokerError):
        for _ in reader:
            pass
    thread.join()
    assert len(turns) == 1000
    reader.close()


INTERRUPTED = """
import os, signal, sys, threading, time
import stoker
sys.path.insert(0, sys.argv[1])
from test_processes import ALONE, swap
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
reader = stoker.Reader(sys.argv[2], **ALONE)
swap(sorted(Path(sys.argv[2]).glob("images-*/shards/*.arrow")))
asked = []
def ask():
    time.sleep(0.5)
    asked.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=ask).start()
try:
    reader.next()
except KeyboardInterrupt:
    took = time.monotonic() - asked[0]
    print("interrupted", took < 5, flush=True)
# The hanging thread does not keep the process.
"""


def test_ctrl_c_ends_a_wait(cache: Path, copy_cache) -> None:
    path, _ = hanging(cache, copy_cache)
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(Path(__file__).parent), str(path)],
        capture_output=True, text=True, timeout=120,
    )
    assert (ended.stdout, ended.returncode) == ("interrupted True\n", 0), ended.stderr


def test_a_loop_is_interrupted_where_batches_are_ready(cache: Path) -> None:
    """Ctrl-C between two batches is Python's own affair, and the state is that of the last batch."""
    with stoker.Reader(cache, **ALONE) as reader:
        with pytest.raises(KeyboardInterrupt):
            for number, _ in enumerate(reader):
                if number == 2:
                    signal.raise_signal(signal.SIGINT)
        state = reader.state_dict()
        assert reader.next() is not None
        reader.load_state_dict(state)
