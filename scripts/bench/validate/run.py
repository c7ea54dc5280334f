"""scripts/bench/run validate: what `stoker simulate` foretells, and what is measured.

The constants are taken from the ladder's rungs at one latency and batch size. Then other latencies, batch sizes and numbers of
readers are foretold from them, and measured. Nothing is fitted to what is foretold.
"""

import argparse
import json
import subprocess
import sys

from build import measure
from ladder.data import Data, Server
from ladder.run import build, options
from results import Results, machine
from validate.runs import BASES, CALIBRATED, LATENCY_MS, RESTED, UNHINDERED, Runs, cycle, middle, samples
from validate.table import table

MODES = {"serial": "serial", "threads": "concurrent", "async": "concurrent", "threads + queue": "prefetch",
         "async + queue": "prefetch", "workers, references": "store-spread", "stoker, warm": "stoker"}
# No network card, no GPU and no disk is in the way on the loopback.
NOTHING = {"nic_gb_s": 1e6, "store_gb_s": 1e6, "store_gets": 1e9, "link_gb_s": 1e6, "disk_gb_s": 1e6, "variation": 0, "ranks": 1}


def calibrated(rows, records):
    """Constants for each rung, from the rows of the ladder's setting."""
    serial = rows["serial"]
    batch = serial["batch"]
    out = {}
    for rung, r in rows.items():
        if rung not in MODES or BASES.get(rung, "serial") not in rows:
            continue
        prepare, take = serial["prepare_s"], r.get("take_s") or serial["take_s"]
        if rung in ("threads", "async"):
            # Threads of one process get in each other's way: what one sample takes of all cores together.
            prepare = (r["wait_s"] - take - serial["get_s"]) * measure.CORES / batch
        elif rung in BASES:
            # Batches are made ahead by the same threads; how fast those are is seen where nothing else happens meanwhile.
            prepare = out[BASES[rung]]["prepare_seconds"]
        elif rung.startswith("workers"):
            # Making a batch ahead takes as long as the whole cycle, as long as the trainer waits for it.
            prepare = cycle(r) * measure.CORES / batch
        out[rung] = {"prepare_seconds": prepare, "copy_gb_s": batch * serial["made_bytes"] / take / 1e9,
                     "made_bytes": serial["made_bytes"], "get_overhead": serial["get_s"] - LATENCY_MS / 1000,
                     # A worker makes its copy, too.
                     "alone_seconds": serial["prepare_s"] + serial["take_s"] / batch,
                     # A timed wait ends late, later still where others want the core.
                     "late_seconds": (cycle(r) - r["wait_s"] - r["step_s"]) * r["micro"] / batch, "samples": records, **NOTHING}
    if UNHINDERED in rows:
        out["stoker, warm"]["read_seconds"] = 1 / rows[UNHINDERED]["samples_s"]
    if RESTED in rows:
        rested = rows[RESTED]
        out["stoker, warm"]["call_seconds"] = rested["wait_s"] * rested["micro"] / rested["batch"]
    return out


def foretold(ctx, a, constants, spec, workers):
    """(share of waiting, seconds a step) of one setting, as the simulator says."""
    batch, readers = spec["batch"], spec["readers"]
    values = dict(constants, batch_per_rank=batch, gets=readers, cores=measure.CORES, ahead_batches=a.depth, streams=1,
                  get_seconds=spec["latency_ms"] / 1000 + constants["get_overhead"])
    del values["get_overhead"]
    # Taking what is there is waiting to the loop, and to what makes batches meanwhile as good as a step.
    call = batch / a.micro * values.pop("call_seconds", 0.0)
    values["step_seconds"] = spec["step_s"] + batch / a.micro * values.pop("late_seconds") + call
    alone = values.pop("alone_seconds")
    if workers:
        # The trainer takes what lies in shared memory. One process at work is as fast as the serial rung, as many as there are
        # cores slow each other down as they did where the constants are from.
        share = (workers - 1) / max(1, measure.CORES - 1)
        values.update(cores=workers, workers=workers, prepare_seconds=alone + share * (values["prepare_seconds"] - alone))
    path = ctx.work / "validate" / "constants.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    done = subprocess.run([str(ctx.stoker), "simulate", "--nodes", "1", "--steps", "50", "--constants", str(path), "--json"],
                          check=True, stdout=subprocess.PIPE, text=True)
    row = next(r for r in json.loads(done.stdout)["rows"] if r["mode"] == MODES[spec["rung"]])
    seconds = row["wait_seconds"] + values["step_seconds"]
    return (row["wait_seconds"] + call) / seconds, seconds


def main(ctx, argv):
    p = argparse.ArgumentParser(prog="scripts/bench/run validate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--batch", type=int, default=256, help="samples of a step where the constants are taken (256)")
    p.add_argument("--repeats", type=int, default=3, help="how often a setting is measured whose cores are busy (3)")
    p.add_argument("--minutes", type=float, default=18, help="nothing is measured again that would be over later than this (18)")
    p.add_argument("--rungs", help="measure only some of: %s; separated by ; others are shown as far as they are known (all)"
                   % "; ".join(CALIBRATED))
    options(p)
    a = p.parse_args(argv)
    chosen = [name.strip() for name in a.rungs.split(";")] if a.rungs else list(CALIBRATED)
    unknown = [name for name in chosen if name not in CALIBRATED]
    if unknown:
        p.error("no rung is called `%s`" % unknown[0])
    results = Results(ctx.work / "validate")
    where = machine()
    data = Data(ctx.work, ctx.model, samples(a), a.max_pixels)
    data.make()
    with Server(data, LATENCY_MS) as server:
        build(ctx, a, data, server, LATENCY_MS)
    runs = Runs(ctx, a, results, data, chosen)
    calibration, settings = runs.all()
    constants = calibrated({rung: middle(rows) for rung, rows in calibration.items()}, data.count)
    out = []
    for given, spec, rows in settings:
        if rows and given.rung in constants:
            ratio, seconds = foretold(ctx, a, constants[given.rung], spec, given.workers)
            out.append({"rung": given.rung, "latency_ms": given.latency_ms, "batch": spec["batch"], "readers": spec["readers"],
                        "workers": given.workers, "step_s": spec["step_s"], "foretold_ratio": ratio, "foretold_s": seconds,
                        "measured_ratios": [r["wait_ratio"] for r in rows], "measured_s": [cycle(r) for r in rows]})
            results.add(dict(out[-1], what="validation"))
    text = "\n".join([where, "", *table(calibration, out)]) + "\n"
    results.write("table.md", text)
    print(text)
    print("in %.0f minutes" % runs.minutes(), file=sys.stderr)
