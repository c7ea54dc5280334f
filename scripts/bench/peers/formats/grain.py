"""Grain over ArrayRecord files with a record a group (what Grain's documentation asks for), its O(1) shuffle, and its elastic iterator."""

from itertools import groupby

import grain
import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter

from peers.formats import common


def decode(record):
    """A record is the number of ids, the ids and the patches."""
    n_ids = int.from_bytes(record[:4], "little")
    return np.frombuffer(record, np.int32, n_ids, 4), np.frombuffer(record, np.uint8, offset=4 + 4 * n_ids)


class Whole:
    """A record that Grain's elastic iterator, which stacks the samples of a batch, does not look into: these are not of one length."""

    def __init__(self, record):
        self.record = record


class Contender(common.Base):
    package = "grain"

    def write(self, samples, folder):
        for shard, group in groupby(common.placed(samples), lambda one: one[0]):
            out = ArrayRecordWriter(str(folder / ("%05d.array_record" % shard)), "group_size:1,uncompressed")
            for _, ids, patches in group:
                out.write(b"".join((len(ids).to_bytes(4, "little"), ids.data, patches.data)))
            out.close()

    def repeat(self, unit, folder, times):
        common.link(unit, folder, "%05d.array_record", times)

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        data = grain.MapDataset.source(ArrayRecordDataSource([str(path) for path in sorted(folder.glob("*.array_record"))]))
        if shuffled:
            data = data.shuffle(seed=common.SEED)
        reads = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        if world == 1:
            self.iterator = iter(data.to_iter_dataset(reads))
        else:
            self.iterator = iter(grain.experimental.ElasticIterator(data.map(Whole), world * batch, grain.sharding.ShardOptions(rank, world),
                                                                    read_options=reads))

    def iterate(self):
        for taken in self.iterator:
            for record in [taken] if isinstance(taken, bytes) else [whole.record for whole in taken]:
                yield decode(record)

    def save(self):
        return self.iterator.get_state()

    def load(self, state):
        self.iterator.set_state(state)
