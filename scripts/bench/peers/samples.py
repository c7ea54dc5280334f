"""The samples of a cache, as numbers and bytes that any format can hold, and what is delivered, held against them.

All contenders get what Stoker's cache holds: ids (int32) and patches (uint8). What is delivered is copied into one batch buffer
that is used again, as a training loop would, and looked at there: the number of the sample is part of its ids, so nothing can be skipped.
"""

import hashlib
from pathlib import Path

import numpy as np


class Samples:
    """Read once from a cache by Stoker itself and kept in memory, in the cache's order of records."""

    def __init__(self, cache, count):
        import stoker

        self.cache, self.of = cache, [None] * count
        with stoker.Reader(cache, global_batch_size=1, micro_batch_size=1, dtype="uint8", layout="padded", shuffle="none", tail="all",
                           sample_ids=True, tensors="numpy") as reader:
            for batch in reader:
                number = int(batch["sample_ids"][0].rsplit(":", 1)[1]) - 1
                ids = np.empty(batch["input_ids"].shape[1] + 1, np.int32)
                # The first id is the sample's number.
                ids[0], ids[1:] = number, batch["input_ids"][0]
                self.of[number] = (ids, np.array(batch["pixel_values"]).reshape(-1))
        if any(sample is None for sample in self.of):
            raise SystemExit("the cache does not hold all of its %d samples" % count)
        self.hashes = [self.digest(*sample) for sample in self.of]

    def __len__(self):
        return len(self.of)

    def __iter__(self):
        return iter(self.of)

    @property
    def bytes(self):
        """Bytes of all samples."""
        return sum(ids.nbytes + patches.nbytes for ids, patches in self.of)

    @staticmethod
    def digest(ids, patches):
        both = hashlib.blake2b(ids.data, digest_size=16)
        both.update(patches.data)
        return both.hexdigest()


def tiny(number):
    """A sample of 16 bytes."""
    return np.array([number, ~number], np.int32), np.array([number], np.int64).view(np.uint8)


class Sink:
    """Copies what is delivered, and notes what it was. `digest_of(number)` makes it compare every byte, which takes longer than reading."""

    def __init__(self, digest_of=None):
        self.digest_of, self.order, self.bytes, self.wrong = digest_of, [], 0, 0
        self.patches, self.ids, self.at = np.ones(128 << 20, np.uint8), np.ones(1 << 16, np.int32), 0

    def take(self, ids, patches):
        """One sample."""
        if self.at + len(patches) > len(self.patches):
            self.at = 0
        to, to_ids = self.patches[self.at:self.at + len(patches)], self.ids[:len(ids)]
        to[...], to_ids[...] = patches, ids
        self.at += len(patches)
        self.bytes += to.nbytes + to_ids.nbytes
        self.order.append(int(to_ids[0]))
        if self.digest_of is not None and Samples.digest(to_ids, to) != self.digest_of(self.order[-1]):
            self.wrong += 1


def folder_bytes(folder):
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def gaps(order):
    """How far apart samples come that follow each other in the source."""
    place = np.full(max(order) + 1, -1)
    place[np.array(order)] = np.arange(len(order))
    both = (place[:-1] >= 0) & (place[1:] >= 0)
    return np.abs(np.diff(place))[both]


def shuffled(order):
    """Two measures of an epoch's order. `near`: the share of neighbours in the source that come at most 64 samples apart; 1 means hardly
    shuffled. `spread`: their median distance, as a share of what a random permutation has; 0 means hardly shuffled."""
    apart = gaps(order)
    return {"near": float((apart <= 64).mean()), "spread": float(np.median(apart) / (len(order) * (1 - 0.5 ** 0.5)))}
