"""One rung in a process of its own: a training loop that takes micro-batches, and a check of every one of them.

usage: python -m ladder.rung SPEC, a JSON object; prints one. The step is a timed wait that burns no CPU time, as the GPU
would not; the cheap check of a micro-batch is done inside it, if it takes any time. When the measured steps are over, one more batch is taken and
all its bytes are compared with the reference.
"""

import json
import os
import sys
import time

import torch

from ladder import actors, sources
from ladder.data import Data, digest, probes
from ladder.memory import family

RUNGS = {**sources.RUNGS, "workers, Ray": actors.rung}


class Check:
    """Compares what is delivered with the reference."""

    def __init__(self, reference):
        self.reference, self.seen, self.checked = reference, set(), 0

    def parts(self, batch):
        """(reference, ids, pixels) of each sample of a micro-batch."""
        at = 0
        lengths = batch["attention_mask"].sum(1).tolist()
        for row, i in enumerate(batch["index"]):
            grid = batch["image_grid_thw"][row].tolist()
            rows = grid[0] * grid[1] * grid[2]
            self.equal(i, grid, self.reference[i]["grid"])
            yield i, batch["input_ids"][row, :lengths[row]], batch["pixel_values"][at:at + rows]
            at += rows
        self.equal(batch["index"], at, len(batch["pixel_values"]))

    def cheap(self, batch):
        """Shapes, a sum of the ids and some pixels, and that no sample comes twice before all came once."""
        if len(self.seen) == len(self.reference):
            self.seen.clear()
        for i, ids, pixels in self.parts(batch):
            of = self.reference[i]
            self.equal(i, [len(ids), int(ids.sum()), probes(pixels)], [of["n_ids"], of["ids_sum"], of["probes"]])
            if i in self.seen:
                raise SystemExit("sample %d came twice" % i)
            self.seen.add(i)
            self.checked += 1

    def whole(self, batch):
        """Every byte."""
        self.cheap(batch)
        for i, ids, pixels in self.parts(batch):
            self.equal(i, [digest(ids), digest(pixels)], [self.reference[i]["ids"], self.reference[i]["pixels"]])

    @staticmethod
    def equal(where, found, wanted):
        if found != wanted:
            raise SystemExit("sample %s is wrong: `%s` instead of `%s`" % (where, found, wanted))


def cpu_seconds():
    """CPU seconds of this process and all that live below it."""
    total = 0
    for pid in family(os.getpid()):
        try:
            fields = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def bytes_read():
    """Bytes that this process has had from disks."""
    fields = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(fields["read_bytes"])


def run(spec):
    torch.set_num_threads(1)
    data = Data(spec["work"], spec["model"], spec["records"], spec["max_pixels"])
    check = Check(data.reference())
    online, batches = RUNGS[spec["rung"]](data, spec)
    micros = spec["batch"] // spec["micro"]
    waits, busy = [[]], []
    step_s, cpu, read = spec["step_s"], cpu_seconds(), bytes_read()
    start = time.perf_counter()
    for number in range(spec["steps"] * micros):
        asked = time.perf_counter()
        batch = next(batches)
        got = time.perf_counter()
        if len(waits[-1]) == micros:
            waits.append([])
        waits[-1].append(got - asked)
        if step_s is None and number == micros - 1:
            # The serial rung says how long a step is: so that it waits for the wanted share of the time.
            step_s = sum(waits[0]) * (1 - spec["target"]) / spec["target"]
        check.cheap(batch)
        left = got + (step_s or 0) / micros - time.perf_counter()
        if left > 0:
            time.sleep(left)
        busy.append((got - start, time.perf_counter() - start))
    wall, cpu, read = time.perf_counter() - start, cpu_seconds() - cpu, bytes_read() - read
    made_bytes = batch["pixel_values"].nbytes / spec["micro"]
    del batch
    for _ in range(micros):
        check.whole(next(batches))
    # The first batch has a figure of its own.
    settle = spec["settle"]
    later = [sum(step) for step in waits[settle:]]
    trained = sum(until - since for since, until in busy[settle * micros:])
    samples = len(busy) * spec["batch"] // micros
    row = {"step_s": step_s, "first_s": waits[0][0], "first_step_wait_s": sum(waits[0]), "wait_s": sum(later) / len(later),
           "longest_wait_s": max(max(step) for step in waits[settle:]),
           "wait_ratio": sum(later) / (sum(later) + trained),
           "samples_s": len(later) * spec["batch"] / (sum(later) + trained), "cpu_s_sample": cpu / samples,
           "busy_share": cpu / wall, "read_bytes": read, "checked": check.checked,
           "made_bytes": made_bytes,
           "busy": [[round(a, 4), round(b, 4)] for a, b in merged(busy)]}
    if online is not None and online.seconds["samples"]:
        row.update(get_s=online.seconds["get"] / online.seconds["samples"],
                   prepare_s=online.seconds["prepare"] / online.seconds["samples"])
        # What the loop itself does for a batch that is there: all but the first micro-batch of each.
        row["take_s"] = sum(sum(step[1:]) for step in waits[settle:]) / len(later) * micros / max(1, micros - 1)
    print(json.dumps(row), flush=True)
    batches.close()
    # Threads and workers that are still ahead have nothing left to do.
    os._exit(0)


def merged(busy, gap_s=0.002):
    """Busy intervals, those with hardly a gap between them put together."""
    out = []
    for since, until in busy:
        if out and since - out[-1][1] < gap_s:
            out[-1][1] = until
        else:
            out.append([since, until])
    return out


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
