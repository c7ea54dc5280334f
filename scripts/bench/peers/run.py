"""scripts/bench/run peers: the same samples in the formats of others and in Stoker's, one process, no workers.

The samples are those of the ladder's cache: ids and uint8 patches. A contender that fails a check is shown as failing, not as fast.
"""

import argparse
import json
import os
import signal
import subprocess
import sys

from ladder.data import Data, Server
from ladder.memory import Memory
from ladder.run import BENCH, build
from peers import start, tables
from peers.elastic import GLOBAL_BATCH
from peers.formats import NAMES
from results import Results, machine

PHASES = ["write", "verify", "sequential", "shuffled", "resume", "cold", "first", "elastic"]
LATENCY_MS, LIMIT_S, CEILING_S = 30, 180, 3


def process(ctx, command, limit_s):
    """Runs a module in the environment of the peers, for at most so long -> what it printed, and its peak memory."""
    path = os.pathsep.join([str(BENCH), str(ctx.work / "python")])
    log = ctx.work / "peers" / "phase.log"
    env = dict(os.environ, PYTHONPATH=path, HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1",
               LITDATA_DISABLE_VERSION_CHECK="1", TOKENIZERS_PARALLELISM="false")
    with open(log, "wb") as errors:
        child = subprocess.Popen([str(ctx.peers), "-m", *map(str, command)], stdout=subprocess.PIPE, stderr=errors, text=True, env=env,
                                 start_new_session=True)
        memory = Memory(child.pid, every_s=0.05)
        memory.start()
        try:
            out, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return {"limit_s": limit_s}
        finally:
            memory.ended.set()
    if child.returncode != 0:
        return {"failed": log.read_text(errors="replace").strip().splitlines()[-1:]}
    return dict(json.loads(out.splitlines()[-1]), peak_bytes=memory.peak)


def phases(ctx, a, results, name, cache):
    """((name, phase or count), row) of all of one contender: measured now, or before with as many samples."""
    def known(**fields):
        return None if a.fresh else results.latest(what="phase", format=name, records=a.records, **fields)

    before = {(name, phase): known(phase=phase) for phase in PHASES}
    before.update({(name, count): known(phase="start", count=count) for count in start.COUNTS})
    if all(before.values()):
        yield from before.items()
        return

    def measured(spec, limit_s):
        spec = dict(spec, format=name, records=a.records, cache=str(cache), hashes=str(ctx.work / "peers" / "hashes.json"))
        return process(ctx, ["peers.elastic" if spec["phase"] == "elastic" else "peers.phase", json.dumps(spec)], limit_s)

    folder = ctx.work / "peers" / name
    for phase in PHASES:
        print("%s: %s" % (name, phase), file=sys.stderr)
        row = measured({"phase": phase, "folder": str(folder)}, LIMIT_S)
        yield (name, phase), results.add({"what": "phase", "format": name, "phase": phase, "records": a.records, **row})
    subprocess.run(["rm", "-r", "-f", folder], check=True)
    for count, row in start.rows(ctx, name, measured):
        yield (name, count), results.add({"what": "phase", "format": name, "phase": "start", "count": count, "records": a.records, **row})


def main(ctx, argv):
    p = argparse.ArgumentParser(prog="scripts/bench/run peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--records", type=int, default=2304, help="samples (2304, as the ladder's; 0.8 MB each); a multiple of %d" % GLOBAL_BATCH)
    p.add_argument("--max-pixels", type=int, default=262_144, help="of a resized picture (262144)")
    p.add_argument("--formats", help="some of: %s; separated by , (all)" % ", ".join(NAMES))
    p.add_argument("--fresh", action="store_true", help="measure formats that were measured with as many samples before, too")
    a = p.parse_args(argv)
    chosen = a.formats.split(",") if a.formats else NAMES
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        p.error("no format is called `%s`" % unknown[0])
    if a.records % GLOBAL_BATCH:
        p.error("the samples are no multiple of %d: `%d`" % (GLOBAL_BATCH, a.records))
    results = Results(ctx.work / "peers")
    where = machine()
    data = Data(ctx.work, ctx.model, a.records, a.max_pixels)
    data.make()
    with Server(data, LATENCY_MS) as server:
        build(ctx, a, data, server, LATENCY_MS)
    rows = {}
    for name in chosen:
        rows.update(phases(ctx, a, results, name, ctx.work / "ladder" / "cache"))
    limits = results.add({"what": "ceilings", **process(ctx, ["peers.ceilings", ctx.work / "peers", CEILING_S], LIMIT_S)})
    notes = tables.Notes()
    parts = [[where], tables.rates(chosen, rows, limits, a.records), tables.places(chosen, rows, a.records, notes),
             tables.start(chosen, rows), ["- [%d] %s" % (place + 1, note) for place, note in enumerate(notes)]]
    text = "\n\n".join("\n".join(part) for part in parts) + "\n"
    results.write("table.md", text)
    print(text)
