"""The rung of Ray: the workers are actors, and their micro-batches lie in its object store, from which the trainer takes them without a copy."""

from collections import deque
from itertools import cycle

import torch

from ladder.sources import Online, Worker, arrays, tensors


class Preparer:
    """One worker."""

    def __init__(self, data, spec, number):
        torch.set_num_threads(1)
        online = Online(data, spec, 1)
        self.batches = Worker(online, spec, True).share(number, spec["workers"])

    def ready(self):
        """Answers once the processor and tokenizer are loaded."""

    def next(self):
        """Its next micro-batch, as arrays: Ray keeps those outside the pickled rest. None after the last one."""
        batch = next(self.batches, None)
        return batch and arrays(batch)


def rung(data, spec):
    import ray

    micros = spec["depth"] * spec["batch"] // spec["micro"]
    # Float32 pixels of all that is ahead and of a few more. From four fifths on Ray would write some of it to the disk.
    pixel_bytes = (micros + 2 * spec["workers"] + 2) * spec["micro"] * spec["max_pixels"] * 2 * 3 * 4
    ray.init(num_cpus=spec["workers"], object_store_memory=pixel_bytes * 4 // 3, include_dashboard=False, log_to_driver=False)
    actor = ray.remote(num_cpus=1)(Preparer)
    crew = [actor.remote(data, spec, number) for number in range(spec["workers"])]
    ray.get([one.ready.remote() for one in crew])

    def batches():
        turns = cycle(crew)
        coming = deque(next(turns).next.remote() for _ in range(micros))
        try:
            while True:
                reference = coming.popleft()
                coming.append(next(turns).next.remote())
                yield tensors(ray.get(reference))
        finally:
            ray.shutdown()

    return None, batches()
