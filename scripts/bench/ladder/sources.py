"""The rungs: each is an iterator of micro-batches that a training loop takes one after another.

A micro-batch is a dict of torch tensors (input_ids and attention_mask padded right, pixel_values one under the other,
image_grid_thw) and `index`, the numbers of its records. The on-line rungs keep one HTTP connection a thread and do the
same work on each sample; they differ in what happens at the same time. What they leave to the trainer and Stoker does not
(positions, labels) counts for them.
"""

import asyncio
import http.client
import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from urllib.parse import urlsplit

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from build import peer
from ladder.data import prepare


class Online:
    """Fetching and preparing. Tokenizers are not safe to share, so there is one processor for each that prepares at a time."""

    def __init__(self, data, spec, processors):
        self.spec, self.samples = spec, data.samples()
        self.order = list(range(data.count))
        random.Random(0).shuffle(self.order)
        self.host = urlsplit(spec["endpoint"]).netloc
        self.local = threading.local()
        self.free = queue.LifoQueue()
        self.seconds = {"get": 0.0, "prepare": 0.0, "samples": 0}
        for _ in range(processors):
            self.free.put(peer.processor(data.model, data.max_pixels)[0])
        # What is done once only is done before the clock starts.
        picture = (data.root / self.samples[0][1].lstrip("/")).read_bytes()
        for process in list(self.free.queue):
            prepare(process, self.samples[0][0], picture)

    def batches(self):
        """Numbers of the records of one batch after another."""
        size = self.spec["batch"]
        return (self.order[at:at + size] for at in range(0, len(self.order) - size + 1, size))

    def fetch(self, i):
        """The bytes of the picture of record `i`."""
        started = time.perf_counter()
        connection = getattr(self.local, "connection", None)
        if connection is None:
            connection = self.local.connection = http.client.HTTPConnection(self.host)
        connection.request("GET", self.samples[i][1])
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OSError("the server answered %d" % answer.status)
        self.seconds["get"] += time.perf_counter() - started
        return body

    def prepared(self, i, picture):
        """The sample of record `i`."""
        process = self.free.get()
        started = time.perf_counter()
        try:
            ids, pixels, grid = prepare(process, self.samples[i][0], picture)
        finally:
            self.free.put(process)
        self.seconds["prepare"] += time.perf_counter() - started
        self.seconds["samples"] += 1
        return i, ids, pixels, grid

    def whole(self, i):
        """Both."""
        return self.prepared(i, self.fetch(i))


def collate(samples):
    """One micro-batch."""
    index, ids, pixels, grids = zip(*samples)
    longest = max(len(row) for row in ids)
    padded = torch.zeros(len(ids), longest, dtype=torch.int64)
    mask = torch.zeros_like(padded)
    for row, (to, seen) in zip(ids, zip(padded, mask)):
        to[:len(row)] = row
        seen[:len(row)] = 1
    return {"index": list(index), "input_ids": padded, "attention_mask": mask, "pixel_values": torch.cat(pixels),
            "image_grid_thw": torch.cat(grids)}


def split(batches, micro):
    """Micro-batches of ready batches: their copies are made when the loop asks."""
    for samples in batches:
        for at in range(0, len(samples), micro):
            yield collate(samples[at:at + micro])


def serial(data, spec):
    """One sample after another."""
    online = Online(data, spec, 1)
    return online, split(([online.whole(i) for i in batch] for batch in online.batches()), spec["micro"])


def by_threads(online, spec):
    pool = ThreadPoolExecutor(spec["readers"])
    return (list(pool.map(online.whole, batch)) for batch in online.batches())


def by_tasks(online, spec):
    import aiohttp

    pool = ThreadPoolExecutor(spec["cores"])
    loop = asyncio.new_event_loop()

    async def open_session():
        return aiohttp.ClientSession(spec["endpoint"], connector=aiohttp.TCPConnector(limit=spec["readers"]))

    session = loop.run_until_complete(open_session())

    async def one(i):
        async with session.get(online.samples[i][1]) as answer:
            answer.raise_for_status()
            picture = await answer.read()
        return await loop.run_in_executor(pool, online.prepared, i, picture)

    async def all_of(batch):
        return await asyncio.gather(*map(one, batch))

    return (loop.run_until_complete(all_of(batch)) for batch in online.batches())


def ahead(batches, depth):
    """A thread makes batches ahead, into a queue."""
    ready = queue.Queue(depth)

    def work():
        for samples in batches:
            ready.put(samples)

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield ready.get()


def concurrent(kind, queued):
    """The rung of threads or tasks, with or without a queue."""
    def rung(data, spec):
        online = Online(data, spec, spec["cores"])
        batches = kind(online, spec)
        return online, split(ahead(batches, spec["depth"]) if queued else batches, spec["micro"])
    return rung


class Worker(IterableDataset):
    """What one worker process does: every n-th micro-batch, pictures fetched by threads some samples ahead."""

    def __init__(self, online, spec, references):
        self.online, self.spec, self.references = online, spec, references

    def __iter__(self):
        info = get_worker_info()
        for batch in self.share(info.id, info.num_workers):
            # Tensors go to the trainer as references to shared memory, arrays as copies through a pipe.
            yield batch if self.references else arrays(batch)

    def share(self, number, workers):
        """The micro-batches of worker `number`."""
        micro = self.spec["micro"]
        parts = [batch[at:at + micro] for batch in self.online.batches() for at in range(0, len(batch), micro)]
        mine = parts[number::workers]
        pool = ThreadPoolExecutor(self.spec["readers"])
        wanted = iter([i for part in mine for i in part])
        coming = [(i, pool.submit(self.online.fetch, i)) for i, _ in zip(wanted, range(self.spec["readers"]))]
        for part in mine:
            samples = []
            for _ in part:
                i, picture = coming.pop(0)
                following = next(wanted, None)
                if following is not None:
                    coming.append((following, pool.submit(self.online.fetch, following)))
                samples.append(self.online.prepared(i, picture.result()))
            yield collate(samples)


def arrays(batch):
    """A micro-batch with NumPy's arrays in place of tensors."""
    return {k: v.numpy() if torch.is_tensor(v) else v for k, v in batch.items()}


def tensors(batch):
    """And back, without a copy."""
    return {k: v if k == "index" or torch.is_tensor(v) else torch.from_numpy(v) for k, v in batch.items()}


def workers(references):
    """The rung of worker processes, whose batches come as references or as copies."""
    def rung(data, spec):
        online = Online(data, spec, 1)
        micros = spec["depth"] * spec["batch"] // spec["micro"]
        loader = DataLoader(Worker(online, spec, references), batch_size=None, num_workers=spec["workers"],
                            prefetch_factor=max(1, micros // spec["workers"]), multiprocessing_context="fork")
        return online, (tensors(batch) for batch in loader)
    return rung


def from_cache(_data, spec):
    """Stoker's reader, asked for the same tensors in the same form."""
    import stoker

    def batches():
        with stoker.Reader(spec["cache"], global_batch_size=spec["batch"], micro_batch_size=spec["micro"], dtype="float32",
                           layout="padded", shuffle="full", sample_ids=True, tensors="torch") as reader:
            # Epoch after epoch.
            for batch in chain.from_iterable(repeat(reader)):
                out = {name: batch[name] for name in ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")}
                # Lines count from 1.
                out["index"] = [int(sample.rsplit(":", 1)[1]) - 1 for sample in batch["sample_ids"]]
                yield out
    return None, batches()


RUNGS = {
    "serial": serial,
    "threads": concurrent(by_threads, False),
    "async": concurrent(by_tasks, False),
    "threads + queue": concurrent(by_threads, True),
    "async + queue": concurrent(by_tasks, True),
    "workers, copies": workers(False),
    "workers, references": workers(True),
    "stoker, cold": from_cache,
    "stoker, warm": from_cache,
}
