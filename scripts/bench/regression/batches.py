"""Reads a cache for some epochs, as training does, in one thread; prints a checksum of all that it was given.

usage: python -m regression.batches CACHE DTYPE EPOCHS

Every row is held against its checksum. The guard takes the instructions of one epoch from those of three: what is left is two epochs,
without the start of Python, which differs from version to version.
"""

import sys
import zlib

import stoker


def main(cache, dtype, epochs):
    total = 0
    # Made when asked for, so that the count does not depend on which thread came first.
    with stoker.Reader(cache, global_batch_size=8, micro_batch_size=8, dtype=dtype, tail="all", threads=1, prefetch_batches=0, verify="always",
                       tensors="numpy") as reader:
        for epoch in range(epochs):
            for batch in reader:
                if epoch == 0:
                    for name in ("input_ids", "labels", "position_ids", "pixel_values"):
                        total = zlib.crc32(batch[name].tobytes(), total)
    print("%08x" % total)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
