"""MosaicML Streaming: MDS files, shuffle algorithm py1e (its default), one canonical node."""

import json

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from peers.formats import common


class Loader(StreamingDataLoader):
    """Batches are lists of samples here, and it counts what it has given by their size."""

    def _get_batch_size(self, batch):
        return len(batch)


class Contender(common.FromLoader):
    package = "mosaicml-streaming"

    def write(self, samples, folder):
        with MDSWriter(out=str(folder), columns={"ids": "ndarray:int32", "patches": "ndarray:uint8"}, size_limit=common.SHARD_BYTES,
                       exist_ok=True) as out:
            for ids, patches in samples:
                out.write({"ids": ids, "patches": patches})

    def repeat(self, unit, folder, times):
        name = "shard.%05d.mds"
        common.link(unit, folder, name, times)
        index = json.loads((unit / "index.json").read_text())
        shard = index["shards"][0]
        index["shards"] = [dict(shard, raw_data=dict(shard["raw_data"], basename=name % number)) for number in range(times)]
        (folder / "index.json").write_text(json.dumps(index))

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        if world == 1:
            clean_stale_shared_memory()
        data = StreamingDataset(local=str(folder), shuffle=shuffled, shuffle_seed=common.SEED, batch_size=batch, num_canonical_nodes=1)
        self.loader = Loader(data, batch_size=batch, collate_fn=list)
