"""Stoker: the cache that the samples come from; the reader's own buffers, checksums on."""

import numpy as np

import stoker
from peers.formats import common


class Contender(common.Base):
    def write(self, samples, folder):
        # A cache is made by `stoker build`, from pictures and text: what that costs is another benchmark's figure.
        (folder / "cache").symlink_to(samples.cache)

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        self.reader = stoker.Reader(folder / "cache", global_batch_size=world * batch, micro_batch_size=batch, rank=rank, world_size=world,
                                    seed=common.SEED, dtype="uint8", layout="padded", shuffle="full" if shuffled else "none", tail="all",
                                    last="pad", sample_ids=True, tensors="numpy")
        self.ids = np.ones(1 << 16, np.int32)

    def iterate(self):
        for batch in self.reader:
            at = 0
            lengths = batch["attention_mask"].sum(1)
            images = iter(batch["image_grid_thw"])
            for row, name in enumerate(batch["sample_ids"]):
                if not name:
                    continue
                rows = int(np.prod(next(images, 0)))
                n_ids = int(lengths[row])
                self.ids[0], self.ids[1:n_ids + 1] = int(name.rsplit(":", 1)[1]) - 1, batch["input_ids"][row, :n_ids]
                yield self.ids[:n_ids + 1], batch["pixel_values"][at:at + rows].reshape(-1)
                at += rows

    def save(self):
        return self.reader.state_dict()

    def load(self, state):
        self.reader.load_state_dict(state)

    def tiny(self, number):
        # The chats of the reader's example program: a line's number says how many tokens it has, all of them the same.
        return np.array([number] + [11] * (4 + (number + 1) % 5), np.int32), np.empty(0, np.uint8)
