"""What the machine can at most, measured in the same run: copies in memory, and reads past the page cache.

usage: python -m peers.ceilings FILE SECONDS; prints a JSON object. FILE is any large file on the disk in question.
"""

import json
import mmap
import os
import sys
import time

import numpy as np

PIECE = 1 << 20


def copies(seconds):
    """GB a second and GB a CPU second of copies of 1 MiB out of 1 GiB, in random order."""
    source, to = np.ones(1 << 30, np.uint8), np.ones(128 << 20, np.uint8)
    places = np.random.default_rng(0).integers(0, len(source) // PIECE, 1 << 12).tolist()
    done, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        for place in places[:256]:
            at = done % (len(to) // PIECE) * PIECE
            to[at:at + PIECE] = source[place * PIECE:(place + 1) * PIECE]
            done += 1
        places = places[256:] + places[:256]
    return done * PIECE / 1e9 / (time.perf_counter() - start), done * PIECE / 1e9 / (time.process_time() - cpu)


def direct(path, seconds):
    """GB a second of reads of 8 MiB one after another, past the page cache; None where the file system has none."""
    buffer = mmap.mmap(-1, 8 * PIECE)
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        size, at, done, start = os.fstat(file).st_size // PIECE * PIECE, 0, 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            read = os.preadv(file, [buffer], at)
            done, at = done + read, at + read if at + read < size else 0
    except OSError:
        return None
    return done / 1e9 / (time.perf_counter() - start)


if __name__ == "__main__":
    memory, per_cpu = copies(float(sys.argv[2]))
    print(json.dumps({"memcpy_gb_s": memory, "memcpy_gb_cpu_s": per_cpu, "direct_gb_s": direct(sys.argv[1], float(sys.argv[2]))}))
