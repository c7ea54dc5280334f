"""Megatron-Energon: tar files with its own index, crude samples, and the shuffling of its quick start: a buffer of 100 over slices of 100."""

import json
import shutil

import numpy as np
import yaml
from megatron.energon import (Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_savable_loader, get_train_dataset, get_val_dataset,
                              stateless)
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

from peers.formats import common
from peers.formats.webdataset import write_tars

META = ".nv-meta"


@stateless
def cook(sample):
    return sample


class Encoder(DefaultTaskEncoder):
    """Samples stay bytes."""

    decoder = None
    cookers = [Cooker(cook)]


class Contender(common.Base):
    package = "megatron-energon"

    def write(self, samples, folder):
        write_tars(samples, folder)
        names = sorted(path.name for path in folder.glob("*.tar"))
        WebdatasetPreparator.prepare_dataset(folder, names, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=2)
        (folder / META / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {}\n")

    def repeat(self, unit, folder, times):
        common.link(unit, folder, "%05d.tar", times)
        common.link(unit, folder, "%05d.tar.idx", times)
        # Its table of keys, of which none may come twice, is not read in training.
        shutil.copytree(unit / META, folder / META)
        names = ["%05d.tar" % number for number in range(times)]
        info, split = json.loads((unit / META / ".info.json").read_text()), yaml.safe_load((unit / META / "split.yaml").read_text())
        info["shard_counts"], split["split_parts"] = dict.fromkeys(names, info["shard_counts"][names[0]]), {"train": names}
        (folder / META / ".info.json").write_text(json.dumps(info))
        (folder / META / "split.yaml").write_text(yaml.dump(split))

    def open(self, folder, shuffled, rank=0, world=1, batch=16):
        ranks = WorkerConfig(rank=rank, world_size=world, num_workers=0, seed_offset=common.SEED)
        if shuffled:
            data = get_train_dataset(folder, worker_config=ranks, batch_size=None, shuffle_buffer_size=100, max_samples_per_sequence=100,
                                     task_encoder=Encoder(), repeat=False)
            self.loader = get_savable_loader(data)
        else:
            data = get_val_dataset(folder, split_part="train", worker_config=ranks, batch_size=None, task_encoder=Encoder())
            self.loader = get_loader(data)

    def iterate(self):
        for sample in self.loader:
            yield np.frombuffer(sample["ids.bin"], np.int32), np.frombuffer(sample["patches.bin"], np.uint8)

    def save(self):
        return self.loader.save_state_rank()

    def load(self, state):
        self.loader.restore_state_rank(state)

    def load_of(self, states):
        self.loader.restore_state_global(states)
