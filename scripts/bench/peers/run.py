"""scripts/bench/run peers: the same samples in the formats of others and in Stoker's, one process, no workers.

The samples are those of the ladder's cache: ids and uint8 patches. A contender that fails a check is shown as failing, not as fast.
"""

import argparse
import json
import os
import subprocess
import sys

from ladder.data import Data, Server
from ladder.memory import Memory
from ladder.run import BENCH, build
from results import Results, machine

FORMATS = ["memmap", "mosaic", "litdata", "webdataset", "hf", "stoker"]
PHASES = ["write", "verify", "sequential", "shuffled", "resume", "cold"]
LATENCY_MS = 30


def process(ctx, command):
    """Runs a module in the environment of the peers -> what it printed, and its peak memory."""
    path = os.pathsep.join([str(BENCH), str(ctx.work / "python")])
    log = ctx.work / "peers" / "phase.log"
    env = dict(os.environ, PYTHONPATH=path, HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1",
               LITDATA_DISABLE_VERSION_CHECK="1", TOKENIZERS_PARALLELISM="false")
    with open(log, "wb") as errors:
        child = subprocess.Popen([str(ctx.peers), "-m", *map(str, command)], stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
        memory = Memory(child.pid)
        memory.start()
        out, _ = child.communicate()
    memory.ended.set()
    if child.returncode != 0:
        return {"failed": log.read_text(errors="replace").strip().splitlines()[-1:]}
    return dict(json.loads(out.splitlines()[-1]), peak_bytes=memory.peak)


def main(ctx, argv):
    p = argparse.ArgumentParser(prog="scripts/bench/run peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--records", type=int, default=2304, help="samples (2304, as the ladder's; 0.8 MB each)")
    p.add_argument("--max-pixels", type=int, default=262_144, help="of a resized picture (262144)")
    p.add_argument("--formats", help="some of: %s; separated by , (all)" % ", ".join(FORMATS))
    p.add_argument("--fresh", action="store_true", help="measure formats that were measured with as many samples before, too")
    a = p.parse_args(argv)
    chosen = a.formats.split(",") if a.formats else FORMATS
    unknown = [name for name in chosen if name not in FORMATS]
    if unknown:
        p.error("no format is called `%s`" % unknown[0])
    results = Results(ctx.work / "peers")
    where = machine()
    data = Data(ctx.work, ctx.model, a.records, a.max_pixels)
    data.make()
    with Server(data, LATENCY_MS) as server:
        build(ctx, a, data, server, LATENCY_MS)
    cache = ctx.work / "ladder" / "cache"
    rows = {}
    for name in chosen:
        folder = ctx.work / "peers" / name
        before = {phase: results.latest(what="phase", format=name, phase=phase, records=a.records) for phase in PHASES}
        if all(before.values()) and not a.fresh:
            rows.update({(name, phase): row for phase, row in before.items()})
            continue
        for phase in PHASES:
            print("%s: %s" % (name, phase), file=sys.stderr)
            spec = {"format": name, "phase": phase, "folder": str(folder), "cache": str(cache), "records": a.records,
                    "hashes": str(ctx.work / "peers" / "hashes.json")}
            rows[name, phase] = results.add({"what": "phase", "format": name, "phase": phase, "records": a.records,
                                             **process(ctx, ["peers.phase", json.dumps(spec)])})
        subprocess.run(["rm", "-r", "-f", str(folder)], check=True)
    shard = max(cache.rglob("*.arrow"), key=lambda path: path.stat().st_size)
    limits = results.add({"what": "ceilings", **process(ctx, ["peers.ceilings", shard, 3])})
    text = "\n".join([where, "", *table(chosen, rows, a.records), "", ceilings(limits)]) + "\n"
    results.write("table.md", text)
    print(text)


def faults(row, records):
    """What is wrong with an epoch, in words; nothing if it is right."""
    if "failed" in row:
        return "FAILS: %s" % " ".join(row["failed"])
    found = []
    if row["wrong"]:
        found.append("%d wrong" % row["wrong"])
    if row["distinct"] != records:
        found.append("%d lost" % (records - row["distinct"]))
    if row["samples"] != row["distinct"]:
        found.append("%d repeated" % (row["samples"] - row["distinct"]))
    return "FAILS: " + ", ".join(found) if found else ""


def table(chosen, rows, records):
    """Markdown: rates in GB a second, and a CPU second in brackets."""
    names = ["format", "version", "every byte right", "write", "sequential", "shuffled", "cold, shuffled", "first sample", "resume at half",
             "first after it", "within 64", "peak memory"]
    out = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]

    def rate(name, phase):
        row = rows[name, phase]
        wrong = "" if phase == "write" and "failed" not in row else faults(row, records)
        # Stoker writes nothing here.
        if phase == "write" and name == "stoker":
            return "-"
        return wrong or "%.2f (%.2f)" % (row["bytes"] / 1e9 / row["wall_s"], row["bytes"] / 1e9 / max(row["cpu_s"], 1e-9))

    for name in chosen:
        shuffled, resumed = rows[name, "shuffled"], rows[name, "resume"]
        whole = faults(rows[name, "verify"], records)
        cells = [name, str(rows[name, "write"].get("version")), whole or "yes"]
        cells += [rate(name, phase) for phase in ("write", "sequential", "shuffled", "cold")]
        if "failed" in resumed or "failed" in shuffled:
            cells += ["-", "FAILS", "-", "-", "-"]
        else:
            said = "exact" if resumed["exact"] else "FAILS: %d lost, %d repeated" % (resumed["lost"], resumed["repeated"])
            cells += [milliseconds(shuffled), said, milliseconds(resumed),
                      "%.0f %%" % (100 * shuffled["near"]), "%.2f GiB" % (shuffled["peak_bytes"] / 2**30)]
        out.append("| " + " | ".join(cells) + " |")
    return out


def milliseconds(row):
    """Until the first sample, if there was one."""
    return "-" if row["first_s"] is None else "%.0f ms" % (1000 * row["first_s"])


def ceilings(row):
    """One line."""
    direct = "none" if row["direct_gb_s"] is None else "%.2f GB/s" % row["direct_gb_s"]
    return "In the same run: memcpy %.2f GB/s (%.2f a CPU second), direct reads %s." % (row["memcpy_gb_s"], row["memcpy_gb_cpu_s"], direct)
