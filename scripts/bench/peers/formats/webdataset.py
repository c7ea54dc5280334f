"""WebDataset: tar files, shuffled by shards and a buffer of 1,000; it keeps no position, so a resume reads and drops."""

import random

import numpy as np
import webdataset

from peers.formats import common


def write_tars(samples, folder):
    """One member of a tar file for the ids of a sample, one for its patches."""
    with webdataset.ShardWriter(str(folder / "%05d.tar"), maxsize=common.SHARD_BYTES, maxcount=1 << 30, verbose=0) as out:
        for i, (ids, patches) in enumerate(samples):
            out.write({"__key__": "%09d" % i, "ids.bin": ids.tobytes(), "patches.bin": patches.tobytes()})


class Contender(common.Base):
    package = "webdataset"
    elastic = "it keeps no position, and what a rank has read is another part with other ranks"

    def write(self, samples, folder):
        write_tars(samples, folder)

    def repeat(self, unit, folder, times):
        common.link(unit, folder, "%05d.tar", times)

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        paths = sorted(map(str, folder.glob("*.tar")))
        self.data = webdataset.WebDataset(paths, shardshuffle=100 if shuffled else False, seed=common.SEED, empty_check=False)
        if shuffled:
            self.data = self.data.shuffle(1000, rng=random.Random(common.SEED))
        self.at, self.skip = 0, 0

    def iterate(self):
        for sample in self.data:
            self.at += 1
            if self.at > self.skip:
                yield np.frombuffer(sample["ids.bin"], np.int32), np.frombuffer(sample["patches.bin"], np.uint8)

    def save(self):
        return self.at

    def load(self, state):
        self.skip = state
