"""scripts/bench/run ladder: all rungs one after another, a table and two plots.

The training loop takes a global batch as micro-batches, as gradient accumulation does, and waits before each if it is not there.
The length of a step is set so that the serial rung waits 85 % of the time; all others get the same step.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from build import measure
from ladder import plot
from ladder.data import Data, Server, drop_pages, touch_pages
from ladder.memory import Memory
from results import Results, machine, several

NAMES = ["serial", "threads", "async", "threads + queue", "async + queue", "workers, copies", "workers, references",
         "workers, Ray", "stoker, cold", "stoker, warm"]
FLOOR_RATIO, FLOOR_FIRST_S = 0.005, 0.1
BENCH = Path(__file__).resolve().parent.parent


def options(p):
    """What the ladder and its validation have in common."""
    p.add_argument("--micro", type=int, default=8, help="samples of a micro-batch (8)")
    p.add_argument("--max-pixels", type=int, default=262_144, help="of a resized picture (262144: 1,008 patches)")
    p.add_argument("--target", type=float, default=0.85, help="share of the time that the serial rung waits (0.85)")
    p.add_argument("--threads", type=int, default=32, help="threads that fetch (32)")
    p.add_argument("--tasks", type=int, default=64, help="requests of the async rungs at once (64)")
    p.add_argument("--depth", type=int, default=2, help="batches that a queue holds (2)")
    p.add_argument("--fresh", action="store_true", help="measure what was measured with these settings before, too")


def spec_of(ctx, a, rung, batch, latency_ms, steps, readers=None, workers=None, step_s=None, settle=1, turn=0):
    """What a rung is told; its first `settle` steps count in no figure but their own. The first fields tell its results from others;
    `turn` tells runs with the same settings apart."""
    if readers is None:
        readers = a.tasks if rung.startswith("async") else a.threads
    return {"rung": rung, "batch": batch, "latency_ms": latency_ms, "readers": readers, "workers": workers or measure.CORES,
            "micro": a.micro, "max_pixels": a.max_pixels, "depth": a.depth, "target": a.target, "steps": steps, "step_s": step_s,
            "settle": settle, "turn": turn,
            "cores": measure.CORES, "work": str(ctx.work), "model": str(ctx.model), "cache": str(ctx.work / "ladder" / "cache")}


IDENTITY = ("rung", "batch", "latency_ms", "readers", "workers", "micro", "max_pixels", "depth", "target", "steps", "settle", "turn")


def known(results, spec):
    """The last row of one rung with the same settings, or None."""
    identity = {name: spec[name] for name in IDENTITY}
    if spec["rung"] != "serial":
        identity["step_s"] = spec["step_s"]
    return results.latest(what="rung", **identity)


def measured(ctx, a, results, data, server, spec):
    """The row of one rung: an earlier one of the same settings, or a new one."""
    row = None if a.fresh else known(results, spec)
    if row is None:
        print("measuring: %s, batch %d, %g ms" % (spec["rung"], spec["batch"], spec["latency_ms"]), file=sys.stderr)
        if spec["rung"] == "stoker, cold":
            drop_pages(spec["cache"])
        elif spec["rung"] == "stoker, warm":
            touch_pages(spec["cache"])
        done = process(ctx, dict(spec, records=data.count, endpoint=server.endpoint))
        row = results.add({"what": "rung", **{name: spec[name] for name in IDENTITY}, **done})
    return row


def process(ctx, spec):
    """Runs one rung -> its figures and its peak memory."""
    path = os.pathsep.join([str(BENCH), str(ctx.work / "python")])
    log = ctx.work / "ladder" / "rung.log"
    with open(log, "wb") as errors:
        child = subprocess.Popen([sys.executable, "-B", "-m", "ladder.rung", json.dumps(spec)], stdout=subprocess.PIPE, text=True,
                                 stderr=errors, env=dict(os.environ, PYTHONPATH=path))
        memory = Memory(child.pid)
        memory.start()
        out, _ = child.communicate()
    memory.ended.set()
    if child.returncode != 0:
        raise SystemExit("the rung `%s` failed\n%s" % (spec["rung"], log.read_text(errors="replace")[-2000:]))
    return dict(json.loads(out.splitlines()[-1]), peak_bytes=memory.peak)


def build(ctx, a, data, server, latency_ms):
    """The cache, made from the server as from S3; -> what it cost. Made anew unless it is the last one that was made here."""
    results = Results(ctx.work / "ladder")
    identity = {"what": "build", "records": data.count, "max_pixels": a.max_pixels, "latency_ms": latency_ms}
    cache = ctx.work / "ladder" / "cache"
    row = results.latest(**identity)
    if a.fresh or row is None or not (cache / "manifest.json").exists() or row != results.latest(what="build"):
        print("building the cache", file=sys.stderr)
        shutil.rmtree(cache, ignore_errors=True)
        command = [ctx.stoker, "build", "--input", "s3://bench/%d/records.jsonl" % data.count, "--s3-endpoint", server.endpoint,
                   "--model", ctx.model, "--output", cache, "--max-pixels", a.max_pixels]
        cost = measure.run(command, log=ctx.work / "ladder" / "build.log", env=server.environment())
        size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
        row = results.add({**identity, "wall_s": cost["wall_s"], "cpu_s": cost["cpu_s"], "cache_bytes": size,
                           "peak_bytes": cost["peak_rss_bytes"]})
    return row


def main(ctx, argv):
    p = argparse.ArgumentParser(prog="scripts/bench/run ladder", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--batch", type=int, default=256, help="samples of a step (256)")
    p.add_argument("--latency-ms", type=float, default=30, help="injected into every answer of the server (30)")
    p.add_argument("--steps", type=int, default=7, help="steps of a rung, the first one with it (7)")
    p.add_argument("--serial-steps", type=int, default=3, help="the same of the serial rung (3)")
    p.add_argument("--rounds", type=int, default=3, help="turns of every rung but the serial one, of which medians are told (3)")
    p.add_argument("--rungs", help="measure only some of: %s; separated by ; (all)" % "; ".join(NAMES))
    options(p)
    a = p.parse_args(argv)
    if a.batch % a.micro:
        p.error("the batch must be a multiple of the micro-batch: `%d`" % a.batch)
    chosen = [name.strip() for name in a.rungs.split(";")] if a.rungs else NAMES
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        p.error("no rung is called `%s`" % unknown[0])
    results = Results(ctx.work / "ladder")
    where = machine()
    # The measured steps, the batch that is checked, and one that the epoch may drop.
    data = Data(ctx.work, ctx.model, (a.steps + 2) * a.batch, a.max_pixels)
    data.make()
    with Server(data, a.latency_ms) as server:
        cost = build(ctx, a, data, server, a.latency_ms)
        found = {name: [] for name in NAMES}
        # Rungs take turns, so that a slow minute of the machine hits all.
        for turn in range(a.rounds):
            for name in NAMES if turn == 0 else NAMES[1:]:
                steps = a.serial_steps if name == "serial" else a.steps
                step_s = found["serial"][0]["step_s"] if found["serial"] else None
                spec = spec_of(ctx, a, name, a.batch, a.latency_ms, steps, step_s=step_s, turn=turn)
                row = None if name in chosen else known(results, spec)
                # The serial rung says how long a step is, so there is none without it.
                if name in chosen or (row is None and name == "serial"):
                    row = measured(ctx, a, results, data, server, spec)
                found[name] += [row] if row else []
        rows = [middle(turns) for turns in found.values() if turns]
    text = "\n".join([where, "", *table(a, rows), "", *payback(a, rows, cost), "", *floors(rows)]) + "\n"
    results.write("table.md", text)
    results.write("timeline.svg", plot.timeline(rows))
    results.write("ratios.svg", plot.ratios(rows, FLOOR_RATIO))
    print(text)
    print("plots: `%s`" % results.folder, file=sys.stderr)


def middle(turns):
    """The row with the middle waiting of those of one rung, with the median of the first batches, and both of all turns."""
    waits, firsts = ([row[name] for row in turns] for name in ("wait_ratio", "first_s"))
    row = sorted(turns, key=lambda row: row["wait_ratio"])[len(turns) // 2]
    return {**row, "first_s": measure.middle(firsts), "waits": waits, "firsts": firsts}


def table(a, rows):
    """Markdown: one line a rung."""
    out = ["A step of %.2f s for %d samples in micro-batches of %d, %g ms a request; medians of %d turns (least to most), the serial rung once." % (
        rows[0]["step_s"], a.batch, a.micro, a.latency_ms, a.rounds),
           "", "| rung | waiting | samples/s | first batch | longest wait | peak memory | CPU a sample | bytes checked |",
           "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        out.append("| %s | %s %% | %.1f | %s s | %.3f s | %.2f GiB | %.1f ms | %d samples |" % (
            r["rung"], several([100 * wait for wait in r["waits"]], "%.2f"), r["samples_s"],
            several(r["firsts"], "%.3f"), r["longest_wait_s"], r["peak_bytes"] / 2**30,
            1000 * r["cpu_s_sample"], r["checked"]))
    return out


def payback(a, rows, cost):
    """After how many steps the cache has paid for itself, against each rung without one."""
    out = ["The cache: %d samples, %.2f GB, built from the same server in %.1f s (%.1f CPU s, %.2f GiB)." % (
        cost["records"], cost["cache_bytes"] / 1e9, cost["wall_s"], cost["cpu_s"], cost["peak_bytes"] / 2**30)]
    cached = next((r for r in rows if r["rung"] == "stoker, warm"), None)
    for r in rows if cached else []:
        saved = r["wait_s"] - cached["wait_s"]
        if saved > 0.01 and not r["rung"].startswith("stoker"):
            steps = cost["wall_s"] / saved
            out.append("- against %s it has paid for itself after %.1f steps (%.2f epochs of these samples)" % (
                r["rung"], steps, steps * a.batch / cost["records"]))
    return out


def floors(rows):
    """Whether each floor is met."""
    out = ["- %s had %.2f GB from the disk" % (r["rung"], r["read_bytes"] / 1e9) for r in rows if r["rung"] == "stoker, cold"]
    for r in rows:
        if r["rung"].startswith("stoker"):
            for what, value, floor, unit in (("waiting", 100 * r["wait_ratio"], 100 * FLOOR_RATIO, "%"),
                                             ("first batch", 1000 * r["first_s"], 1000 * FLOOR_FIRST_S, "ms")):
                out.append("- %s: %s %.3g %s, floor %g %s: %s" % (r["rung"], what, value, unit, floor, unit,
                                                                "met" if value <= floor else "MISSED"))
    return out
