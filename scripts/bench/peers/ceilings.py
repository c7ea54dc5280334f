"""What the machine can at most, measured in the same run: copies in memory, and writes and reads past the page cache.

usage: python -m peers.ceilings FOLDER SECONDS; prints a JSON object: bytes, seconds and CPU seconds of each. FOLDER is on the disk in question.
"""

import json
import mmap
import os
import sys
import time

import numpy as np

PIECE = 1 << 20
FILE_BYTES = 1 << 30


def measured(seconds, step):
    """Bytes, seconds and CPU seconds of doing `step(done)`, which gives the bytes it moved, again and again."""
    done, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        done += step(done)
    return done, time.perf_counter() - start, time.process_time() - cpu


def copies(seconds):
    """Copies of 1 MiB out of 1 GiB, in random order."""
    source, to = np.ones(1 << 30, np.uint8), np.ones(128 << 20, np.uint8)
    places = np.random.default_rng(0).integers(0, len(source) // PIECE, 1 << 12).tolist()

    def step(done):
        for i in range(done // PIECE, done // PIECE + 256):
            at, place = i % (len(to) // PIECE) * PIECE, places[i % len(places)] * PIECE
            to[at:at + PIECE] = source[place:place + PIECE]
        return 256 * PIECE

    return measured(seconds, step)


def direct(folder, seconds):
    """Writes of 8 MiB one after another past the page cache, and reads of what was written; None where the file system has neither."""
    path, buffer = os.path.join(folder, "ceiling"), mmap.mmap(-1, 8 * PIECE)
    buffer.write(os.urandom(8 * PIECE))
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        write = measured(seconds, lambda done: os.pwritev(file, [buffer], done % FILE_BYTES))
        size = min(write[0], FILE_BYTES)
        return write, measured(seconds, lambda done: os.preadv(file, [buffer], done % size))
    except OSError:
        return None, None
    finally:
        if os.path.exists(path):
            os.unlink(path)


if __name__ == "__main__":
    copy, (written, read) = copies(float(sys.argv[2])), direct(sys.argv[1], float(sys.argv[2]))
    print(json.dumps({"copy": copy, "write": written, "read": read}))
