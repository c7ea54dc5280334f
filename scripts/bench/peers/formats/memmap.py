"""Raw files and a table of offsets, gathered by a permutation: what a team writes for itself. Order and position are ours."""

from itertools import groupby

import numpy as np

from peers.formats import common


class Contender(common.Base):
    package = "numpy"

    def write(self, samples, folder):
        table = []
        for shard, group in groupby(common.placed(samples), lambda one: one[0]):
            with open(folder / ("%05d.bin" % shard), "wb", buffering=1 << 20) as file:
                for _, ids, patches in group:
                    table.append((shard, file.tell(), len(ids), len(patches)))
                    file.write(ids.data)
                    file.write(patches.data)
        np.save(folder / "table.npy", np.array(table))

    def repeat(self, unit, folder, times):
        common.link(unit, folder, "%05d.bin", times)
        table = np.load(unit / "table.npy")
        all_of = np.tile(table, (times, 1))
        all_of[:, 0] = np.arange(times).repeat(len(table))
        np.save(folder / "table.npy", all_of)

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        self.table = np.load(folder / "table.npy")
        self.maps = [np.memmap(path, np.uint8, "r") for path in sorted(folder.glob("*.bin"))]
        count = len(self.table)
        self.order = np.random.default_rng(common.SEED).permutation(count) if shuffled else np.arange(count)
        self.at, self.rank, self.world = 0, rank, world

    def iterate(self):
        for i in self.order[self.at + self.rank::self.world]:
            self.at += self.world
            shard, at, n_ids, n_patches = self.table[i].tolist()
            split = at + 4 * n_ids
            yield self.maps[shard][at:split].view(np.int32), self.maps[shard][split:split + n_patches]

    def save(self):
        return self.at

    def load(self, state):
        self.at = state
