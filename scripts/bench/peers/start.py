"""How opening and the first sample grow with the number of samples: sets of tiny ones, up to 10^7.

A set of a peer's is one shard of 10^4 samples of 16 bytes that is linked under as many names as needed, with the index that names all of them:
its shards are many, as they would be, and only one is written. Stoker's cache is written whole, by an example program of the reader.
"""

import subprocess
import sys
import time

from peers.phase import UNIT

COUNTS = [UNIT, 100_000, 1_000_000, 10_000_000]
LIMIT_S, MAKE_LIMIT_S = 60, 180


def rows(ctx, name, phase):
    """(count, row) of each size of one contender. `phase(spec, limit)` runs one in a process of its own."""
    folder = ctx.work / "peers" / (name + "-tiny")
    subprocess.run(["rm", "-r", "-f", folder], check=True)
    made = make_caches(ctx, folder) if name == "stoker" else phase({"phase": "make", "folder": str(folder), "counts": COUNTS}, MAKE_LIMIT_S)
    for count in COUNTS:
        print("%s: start, %d samples" % (name, count), file=sys.stderr)
        yield count, made if "wall_s" not in made else phase({"phase": "start", "folder": str(folder / str(count))}, LIMIT_S)
    subprocess.run(["rm", "-r", "-f", folder], check=True)


def make_caches(ctx, folder):
    """Stoker's caches of all sizes."""
    start = time.perf_counter()
    for count in COUNTS:
        command = [ctx.bench_open, folder / str(count), "--samples", str(count), "--rounds", "0"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=MAKE_LIMIT_S)
        except subprocess.TimeoutExpired:
            return {"limit_s": MAKE_LIMIT_S}
        except subprocess.CalledProcessError as error:
            return {"failed": error.stderr.strip().splitlines()[-1:]}
    return {"wall_s": time.perf_counter() - start}
