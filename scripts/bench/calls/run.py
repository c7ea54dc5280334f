"""scripts/bench/run calls: what a Python program pays for taking a batch that is ready, and for saving its cursor.

Batches are those of the ladder's cache. Before each call the program sleeps, so that nothing but the call itself is measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from build import measure
from ladder.data import Data, Server
from ladder.run import build
from results import Results, machine

RECORDS, LATENCY_MS = 2304, 30
# So long that batches are made meanwhile; so many calls that a round takes some seconds.
PAUSE_S, CALLS = 0.005, 480
FLOOR_US = 100


def one(cache, tensors):
    """In a process of its own: medians in microseconds."""
    import stoker

    took = {"batch": [], "cursor": []}
    with stoker.Reader(cache, global_batch_size=8, micro_batch_size=8, tensors=tensors) as reader:
        batches = iter(reader)
        for number in range(2 * CALLS):
            time.sleep(PAUSE_S)
            try:
                asked = time.perf_counter()
                batch = next(batches)
            except StopIteration:
                batches = iter(reader)
                continue
            got = time.perf_counter()
            reader.state_dict()
            saved = time.perf_counter()
            # Buffers are made in the first half.
            if number >= CALLS:
                took["batch"].append(got - asked)
                took["cursor"].append(saved - got)
            del batch
    print(json.dumps({name: 1e6 * measure.middle(values) for name, values in took.items()}))


def main(ctx, argv):
    p = argparse.ArgumentParser(prog="scripts/bench/run calls", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rounds", type=int, default=3, help="turns of both kinds of tensors (3)")
    p.add_argument("--max-pixels", type=int, default=262_144, help="of a resized picture (262144)")
    p.add_argument("--fresh", action="store_true", help="make the cache anew")
    a = p.parse_args(argv)
    results, where = Results(ctx.work / "calls"), machine()
    data = Data(ctx.work, ctx.model, RECORDS, a.max_pixels)
    data.make()
    with Server(data, LATENCY_MS) as server:
        build(ctx, a, data, server, LATENCY_MS)
    lines = [where, "", "| microseconds (goal) | taking a batch (%d) | `state_dict()` |" % FLOOR_US,
             "|---|---|---|"]
    for tensors in ("numpy", "torch"):
        rows = [results.add({"what": "calls", "tensors": tensors, **process(ctx, tensors)}) for _ in range(a.rounds)]
        lines.append("| %s | %.0f | %.0f |" % (tensors, *(measure.middle([row[name] for row in rows]) for name in ("batch", "cursor"))))
    results.write("table.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


def process(ctx, tensors):
    """One round of one kind."""
    path = os.pathsep.join(map(str, (Path(__file__).resolve().parent.parent, ctx.work / "python")))
    done = subprocess.run([sys.executable, "-B", "-m", "calls.run", str(ctx.work / "ladder" / "cache"), tensors], check=True,
                          stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONPATH=path))
    return json.loads(done.stdout)


if __name__ == "__main__":
    one(*sys.argv[1:])
