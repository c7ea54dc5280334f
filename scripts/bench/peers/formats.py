"""The contenders. Each is a class with what a run needs: write, open, iterate, save and load.

`write(samples, folder)` makes the files; `open(folder, shuffled)` prepares an epoch of one rank; `iterate()` yields (ids, patches) as
NumPy arrays; `save()` is a state that `load(state)` of another one goes on from. Each is set up as its own documentation says, in
one process without workers, without compression, with shards of 64 MiB.
"""

import numpy as np

SHARD_BYTES = 64 << 20
SEED = 5


class Memmap:
    """Raw files and a table of offsets, gathered by a permutation: what a team writes for itself. Order and position are ours."""

    package = "numpy"

    def write(self, samples, folder):
        table, shard, at, file = [], -1, SHARD_BYTES, None
        for ids, patches in samples:
            if at + ids.nbytes + patches.nbytes > SHARD_BYTES:
                if file:
                    file.close()
                shard, at, file = shard + 1, 0, open(folder / ("%05d.bin" % (shard + 1)), "wb", buffering=1 << 20)
            file.write(ids.data)
            file.write(patches.data)
            table.append((shard, at, len(ids), len(patches)))
            at += ids.nbytes + patches.nbytes
        file.close()
        np.save(folder / "table.npy", np.array(table))

    def open(self, folder, shuffled):
        self.table = np.load(folder / "table.npy")
        self.maps = [np.memmap(path, np.uint8, "r") for path in sorted(folder.glob("*.bin"))]
        count = len(self.table)
        self.order = np.random.default_rng(SEED).permutation(count) if shuffled else np.arange(count)
        self.at = 0

    def iterate(self):
        for i in self.order[self.at:]:
            self.at += 1
            shard, at, n_ids, n_patches = self.table[i].tolist()
            split = at + 4 * n_ids
            yield self.maps[shard][at:split].view(np.int32), self.maps[shard][split:split + n_patches]

    def save(self):
        return self.at

    def load(self, state):
        self.at = state


class FromLoader:
    """Formats with a loader of their own, which gives lists of samples and keeps its position."""

    def iterate(self):
        for batch in self.loader:
            for sample in batch:
                yield sample["ids"], sample["patches"]

    def save(self):
        return self.loader.state_dict()

    def load(self, state):
        self.loader.load_state_dict(state)


class Mosaic(FromLoader):
    """MosaicML Streaming: MDS files, shuffle algorithm py1e (its default)."""

    package = "mosaicml-streaming"

    def write(self, samples, folder):
        from streaming import MDSWriter

        with MDSWriter(out=str(folder), columns={"ids": "ndarray:int32", "patches": "ndarray:uint8"}, size_limit=SHARD_BYTES,
                       exist_ok=True) as out:
            for ids, patches in samples:
                out.write({"ids": ids, "patches": patches})

    def open(self, folder, shuffled):
        from streaming import StreamingDataset, StreamingDataLoader
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        self.data = StreamingDataset(local=str(folder), shuffle=shuffled, shuffle_seed=SEED, batch_size=16, num_canonical_nodes=1)

        class Loader(StreamingDataLoader):
            # Batches are lists of samples here.
            def _get_batch_size(self, batch):
                return len(batch)

        self.loader = Loader(self.data, batch_size=16, collate_fn=list)


class LitData(FromLoader):
    """LitData: optimised chunks, shuffle=True (its default shuffler)."""

    package = "litdata"

    def write(self, samples, folder):
        from litdata.streaming.writer import BinaryWriter

        out = BinaryWriter(str(folder), chunk_bytes=SHARD_BYTES)
        for i, (ids, patches) in enumerate(samples):
            out[i] = {"ids": ids, "patches": patches}
        out.done()
        out.merge(1)

    def open(self, folder, shuffled):
        from litdata import StreamingDataLoader, StreamingDataset

        self.data = StreamingDataset(str(folder), shuffle=shuffled, seed=SEED, drop_last=False)
        self.loader = StreamingDataLoader(self.data, batch_size=16, collate_fn=list)


class WebDataset:
    """WebDataset: tar files, shuffled by shards and a buffer of 1,000; it keeps no position, so a resume reads and drops."""

    package = "webdataset"

    def write(self, samples, folder):
        import webdataset

        with webdataset.ShardWriter(str(folder / "%05d.tar"), maxsize=SHARD_BYTES, maxcount=1 << 30, verbose=0) as out:
            for i, (ids, patches) in enumerate(samples):
                out.write({"__key__": "%09d" % i, "ids.bin": ids.tobytes(), "patches.bin": patches.tobytes()})

    def open(self, folder, shuffled):
        import random

        import webdataset

        paths = sorted(map(str, folder.glob("*.tar")))
        self.data = webdataset.WebDataset(paths, shardshuffle=100 if shuffled else False, seed=SEED, empty_check=False)
        if shuffled:
            self.data = self.data.shuffle(1000, rng=random.Random(SEED))
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


class HuggingFace:
    """HF datasets: memory-mapped Arrow, binary columns, iterable with a shuffle buffer of 1,000 and its own state."""

    package = "datasets"

    def write(self, samples, folder):
        import pyarrow as pa
        from datasets import Features, Value
        from datasets.arrow_writer import ArrowWriter

        features = Features({"ids": Value("binary"), "patches": Value("large_binary")})
        out, shard, held = None, 0, SHARD_BYTES
        for ids, patches in samples:
            if held + ids.nbytes + patches.nbytes > SHARD_BYTES:
                if out:
                    out.finalize()
                out, shard, held = ArrowWriter(path=str(folder / ("%05d.arrow" % shard)), features=features), shard + 1, 0
            out.write_table(pa.table({"ids": pa.array([ids.tobytes()], pa.binary()),
                                      "patches": pa.array([patches.tobytes()], pa.large_binary())}))
            held += ids.nbytes + patches.nbytes
        out.finalize()

    def open(self, folder, shuffled):
        from datasets import Dataset, concatenate_datasets

        parts = [Dataset.from_file(str(path)) for path in sorted(folder.glob("*.arrow"))]
        self.data = concatenate_datasets(parts).to_iterable_dataset(num_shards=len(parts))
        if shuffled:
            self.data = self.data.shuffle(seed=SEED, buffer_size=1000)

    def iterate(self):
        for sample in self.data:
            yield np.frombuffer(sample["ids"], np.int32), np.frombuffer(sample["patches"], np.uint8)

    def save(self):
        return self.data.state_dict()

    def load(self, state):
        self.data.load_state_dict(state)


class Stoker:
    """Stoker: the cache that the samples come from; the reader's own buffers, checksums on."""

    package = "stoker"

    def write(self, samples, folder):
        # A cache is made by `stoker build`, from pictures and text: what that costs is another benchmark's figure.
        (folder / "cache").symlink_to(samples.cache)

    def open(self, folder, shuffled):
        import stoker

        self.reader = stoker.Reader(folder / "cache", global_batch_size=16, micro_batch_size=16, seed=SEED, dtype="uint8", layout="padded",
                                    shuffle="full" if shuffled else "none", tail="all", last="pad", sample_ids=True, tensors="numpy")
        self.ids = np.ones(1 << 16, np.int32)

    def iterate(self):
        for batch in self.reader:
            at = 0
            lengths = batch["attention_mask"].sum(1)
            images = iter(batch["image_grid_thw"])
            for row, name in enumerate(batch["sample_ids"]):
                if not name:
                    continue
                rows = int(np.prod(next(images)))
                n_ids = int(lengths[row])
                self.ids[0], self.ids[1:n_ids + 1] = int(name.rsplit(":", 1)[1]) - 1, batch["input_ids"][row, :n_ids]
                yield self.ids[:n_ids + 1], batch["pixel_values"][at:at + rows].reshape(-1)
                at += rows

    def save(self):
        return self.reader.state_dict()

    def load(self, state):
        self.reader.load_state_dict(state)


FORMATS = {"memmap": Memmap, "mosaic": Mosaic, "litdata": LitData, "webdataset": WebDataset, "hf": HuggingFace, "stoker": Stoker}
