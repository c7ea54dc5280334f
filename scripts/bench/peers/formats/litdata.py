"""LitData: optimised chunks, shuffle=True (its default shuffler)."""

import json

from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter

from peers.formats import common


class Contender(common.FromLoader):
    package = "litdata"

    def write(self, samples, folder):
        out = BinaryWriter(str(folder), chunk_bytes=common.SHARD_BYTES)
        for i, (ids, patches) in enumerate(samples):
            out[i] = {"ids": ids, "patches": patches}
        out.done()
        out.merge(1)

    def repeat(self, unit, folder, times):
        name = "chunk-0-%d.bin"
        common.link(unit, folder, name, times)
        index = json.loads((unit / "index.json").read_text())
        index["chunks"] = [dict(index["chunks"][0], filename=name % number) for number in range(times)]
        (folder / "index.json").write_text(json.dumps(index))

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        data = StreamingDataset(str(folder), shuffle=shuffled, seed=common.SEED, drop_last=False)
        self.loader = StreamingDataLoader(data, batch_size=batch, collate_fn=list)
