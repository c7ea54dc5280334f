"""What the contenders share: the interface, and how samples are dealt to shards."""

import os

from peers.samples import tiny

SHARD_BYTES = 64 << 20
SEED = 5


class Base:
    """What a run needs of a contender. A sample is (ids, patches), NumPy arrays.

    package     whose version is told
    elastic     why an epoch cannot go on with another number of ranks; None if it can, by what the peer documents
    distributed whether ranks find each other through torch.distributed
    """

    package = None
    elastic = None
    distributed = False

    def write(self, samples, folder):
        """The files of these samples, in their order."""
        raise NotImplementedError

    def repeat(self, unit, folder, times):
        """A set of `times` times the samples that `unit`, a folder with one shard, holds: its files linked under more names, and an
        index that names all of them."""
        raise NotImplementedError

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        """Prepare an epoch of one rank, which counts in batches of so many samples."""
        raise NotImplementedError

    def iterate(self):
        """The samples of the epoch, from the place where it is."""
        raise NotImplementedError

    def save(self):
        """The place, between two batches: plain data."""
        raise NotImplementedError

    def load(self, state):
        """Go on from the place of another."""
        raise NotImplementedError

    def load_of(self, states):
        """Go on from those of all ranks of another world, which is the same place for all if not said otherwise."""
        self.load(states[0])

    def tiny(self, number):
        """What sample `number` of a set of tiny samples must come out as."""
        return tiny(number)


class FromLoader(Base):
    """Formats with a loader of their own, which gives lists of samples and keeps its position."""

    distributed = True

    def iterate(self):
        for batch in self.loader:
            for sample in batch:
                yield sample["ids"], sample["patches"]

    def save(self):
        return self.loader.state_dict()

    def load(self, state):
        self.loader.load_state_dict(state)


def placed(samples):
    """(shard, ids, patches) of each: shards hold at most SHARD_BYTES."""
    shard, held = 0, 0
    for ids, patches in samples:
        size = ids.nbytes + patches.nbytes
        if held + size > SHARD_BYTES:
            shard, held = shard + 1, 0
        held += size
        yield shard, ids, patches


def link(unit, folder, name, times):
    """File `name % 0` of one folder under `times` names in another."""
    for number in range(times):
        os.link(unit / (name % 0), folder / (name % number))
