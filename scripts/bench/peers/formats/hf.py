"""HF datasets: memory-mapped Arrow, binary columns, iterable with a shuffle buffer of 1,000 and its own state."""

from itertools import groupby

import numpy as np
import pyarrow as pa
import torch  # noqa: F401 (an iterable data set loads it, which must not count)
from datasets import Dataset, Features, Value, concatenate_datasets
from datasets.arrow_writer import ArrowWriter

from peers.formats import common

# Of a record batch: the writer's default.
BATCH_ROWS = 1000


class Contender(common.Base):
    package = "datasets"
    elastic = "a state is one rank's place in its own shards; nothing is documented for another number of ranks"

    def write(self, samples, folder):
        features = Features({"ids": Value("binary"), "patches": Value("large_binary")})
        for shard, group in groupby(common.placed(samples), lambda one: one[0]):
            out, rows = ArrowWriter(path=str(folder / ("%05d.arrow" % shard)), features=features), list(group)
            for at in range(0, len(rows), BATCH_ROWS):
                _, ids, patches = zip(*rows[at:at + BATCH_ROWS])
                out.write_table(pa.table({"ids": pa.array([one.tobytes() for one in ids], pa.binary()),
                                          "patches": pa.array([one.tobytes() for one in patches], pa.large_binary())}))
            out.finalize()

    def repeat(self, unit, folder, times):
        common.link(unit, folder, "%05d.arrow", times)

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        parts = [Dataset.from_file(str(path)) for path in sorted(folder.glob("*.arrow"))]
        self.data = concatenate_datasets(parts).to_iterable_dataset(num_shards=len(parts))
        if shuffled:
            self.data = self.data.shuffle(seed=common.SEED, buffer_size=1000)

    def iterate(self):
        for sample in self.data:
            yield np.frombuffer(sample["ids"], np.int32), np.frombuffer(sample["patches"], np.uint8)

    def save(self):
        return self.data.state_dict()

    def load(self, state):
        self.data.load_state_dict(state)
