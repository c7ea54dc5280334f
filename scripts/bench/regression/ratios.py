"""How near the reader comes to a plain read of the same bytes, in CPU time of one thread.

usage: python -m regression.ratios CACHE; prints a JSON object: for each way of reading its GB a CPU second over that of the ceiling.

The ceiling is `pread` out of the page cache into memory of the same kind: the same pages, large or small as this machine has them,
so the ratio means the same on others. (A copy within memory is told beside it, and judges nothing: how the two compare depends on
the machine.) Each way has its turn in each round, and a round's ratio is of its own batches: the one that a quarter is faster than, of
each way, since others on the machine make a batch slower, never faster. The median of the rounds counts.
"""

import json
import mmap
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import stoker

ROUNDS = 24
# The batch in hand and the one that is made.
BUFFERS = 2
# Of a batch, which is one picture of 1,003,520 pixels: larger ones leave the CPU's caches, and then chance decides more than code.
PIECE = 3 << 20
WAYS = {"copy": "off", "copy, checked": "always"}


class Pread:
    """Reads all shards of pictures in pieces as large as a picture, into as many buffers in turn as the reader has."""

    def __init__(self, cache):
        files = [(os.open(path, os.O_RDONLY), path.stat().st_size) for path in sorted(Path(cache).glob("images-*/shards/*"))]
        self.places = [(file, offset) for file, size in files for offset in range(0, size - PIECE, PIECE)]
        self.buffers = [huge(PIECE) for _ in range(BUFFERS)]

    def __iter__(self):
        for number, (file, offset) in enumerate(self.places):
            yield os.preadv(file, [self.buffers[number % BUFFERS]], offset)


class Memcpy:
    """Copies as much out of ordinary memory."""

    def __init__(self):
        self.source = np.ones(256 << 20, np.uint8)
        self.targets = [np.frombuffer(huge(PIECE), np.uint8) for _ in range(BUFFERS)]

    def __iter__(self):
        for number, at in enumerate(range(0, self.source.nbytes - PIECE, PIECE)):
            self.targets[number % BUFFERS][:] = self.source[at:at + PIECE]
            yield PIECE


class Reading:
    """One epoch of a reader that makes each batch when it is asked for, so that its CPU time falls where it is measured."""

    def __init__(self, cache, verify):
        self.reader = stoker.Reader(cache, global_batch_size=1, micro_batch_size=1, dtype="uint8", layout="packed", tail="all", threads=1,
                                    prefetch_batches=0, verify=verify, tensors="numpy")

    def __iter__(self):
        return (batch["pixel_values"].nbytes for batch in self.reader)

    def check(self):
        """A sum over all pixels of an epoch, which no order of the pictures changes."""
        return sum(int(batch["pixel_values"].sum(dtype=np.uint64)) for batch in self.reader)


def huge(size):
    """Memory in large pages, as the reader's."""
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def seconds(way):
    """CPU seconds a GB of each batch of one pass."""
    batches, started = iter(way), time.process_time()
    for done in batches:
        now = time.process_time()
        yield (now - started) / (done / 1e9)
        started = time.process_time()


def main(cache):
    readers = {name: Reading(cache, verify) for name, verify in WAYS.items()}
    # All are the same sum, each made of bytes that were read in its own way; this also brings the shards into the page cache.
    sums = {reader.check() for reader in readers.values()}
    if len(sums) != 1:
        raise SystemExit("error: the ways of reading give other bytes")
    ways = {"pread": Pread(cache), "memcpy": Memcpy(), **readers}
    rounds = [{name: 1 / statistics.quantiles(seconds(way), n=4)[0] for name, way in ways.items()} for _ in range(ROUNDS)]
    rates = {name: statistics.median(each[name] for each in rounds) for name in ways}
    ratios = {name: statistics.median(each[name] / each["pread"] for each in rounds) for name in WAYS}
    print(json.dumps({"pixels": sums.pop(), "gb_cpu_s": rates, "ratios": ratios}))


if __name__ == "__main__":
    main(sys.argv[1])
