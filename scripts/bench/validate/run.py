"""scripts/bench/run validate: what `stoker simulate` foretells, and what is measured.

The constants are taken from the ladder's rungs at one latency and batch size. Then other latencies, batch sizes and numbers of
readers are foretold from them, and measured. Nothing is fitted to what is foretold.
"""

import argparse
import json
import subprocess

from build import measure
from ladder.data import Data, Server
from ladder.run import build, measured, options, spec_of
from results import Results, machine

LATENCY_MS, STEPS, SERIAL_STEPS = 30, 4, 3
# Of Stoker's rows: its buffers are made in the first epoch, which takes longer than a step; then two are measured.
EPOCHS, SETTLED = 3, 1
GOAL = 0.20
# rung, latency in ms, share of the batch, readers, workers, step as a share of what Stoker's reader needs (None: as in the ladder)
FORETOLD = [
    ("serial", 5, 1 / 2, None, None, None),
    ("serial", 100, 1 / 4, None, None, None),
    ("threads", 5, 1 / 2, 32, None, None),
    ("threads", 200, 1, 8, None, None),
    ("async", 5, 1 / 2, 64, None, None),
    ("async", 200, 1 / 2, 8, None, None),
    ("threads + queue", 200, 1, 8, None, None),
    ("threads + queue", 5, 1 / 2, 32, None, None),
    ("async + queue", 5, 1 / 2, 64, None, None),
    ("workers, references", 30, 1 / 2, 32, 1, None),
    ("workers, references", 200, 1, 4, 2, None),
    ("stoker, warm", 30, 1 / 2, None, None, 0.7),
    ("stoker, warm", 30, 1 / 4, None, None, 0.9),
]
MODES = {"serial": "serial", "threads": "concurrent", "async": "concurrent", "threads + queue": "prefetch",
         "async + queue": "prefetch", "workers, references": "store-spread", "stoker, warm": "stoker"}
# No network card, no GPU and no disk is in the way on the loopback.
NOTHING = {"nic_gb_s": 1e6, "store_gb_s": 1e6, "store_gets": 1e9, "link_gb_s": 1e6, "disk_gb_s": 1e6, "variation": 0, "ranks": 1}


def calibrated(rows, batch, samples):
    """Constants for each rung, from the rows of the ladder's setting."""
    serial = rows["serial"]
    overhead = serial["get_s"] - LATENCY_MS / 1000
    copy = batch * serial["made_bytes"] / serial["take_s"] / 1e9
    out = {}
    for rung, r in rows.items():
        prepare = out.get(rung.removesuffix(" + queue"), {}).get("prepare_seconds", serial["prepare_s"])
        if rung in ("threads", "async"):
            # Threads of one process get in each other's way: what one sample takes of all cores together.
            prepare = (r["wait_s"] - r["take_s"] - serial["get_s"]) * measure.CORES / batch
        elif rung != "serial" and r["wait_ratio"] > 0.02:
            # Making a batch ahead takes as long as the whole cycle, as long as the trainer waits for it at all.
            latency = serial["get_s"] if rung.endswith("queue") else 0
            prepare = (r["wait_s"] + r["step_s"] - latency) * measure.CORES / batch
        out[rung] = {"prepare_seconds": prepare, "copy_gb_s": copy, "made_bytes": serial["made_bytes"], "get_overhead": overhead,
                     "alone_seconds": serial["prepare_s"], "samples": samples, **NOTHING}
    out["stoker, warm"]["read_seconds"] = 1 / rows["stoker, unhindered"]["samples_s"]
    return out


def foretold(ctx, constants, rung, latency_ms, batch, readers, workers, step_s, depth):
    """The simulator's row for one setting."""
    values = dict(constants, batch_per_rank=batch, step_seconds=step_s, gets=readers, cores=measure.CORES, ahead_batches=depth,
                  get_seconds=latency_ms / 1000 + constants["get_overhead"], streams=1)
    del values["get_overhead"]
    alone = values.pop("alone_seconds")
    if rung.startswith("workers"):
        # The trainer takes what lies in shared memory; the worker has made the copy. One process at work is as fast as the serial
        # rung, as many as there are cores slow each other down as they did where the constants are from.
        share = (workers - 1) / max(1, measure.CORES - 1)
        values.update(cores=workers, workers=workers, prepare_seconds=alone + share * (values["prepare_seconds"] - alone))
    path = ctx.work / "validate" / "constants.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    done = subprocess.run([str(ctx.stoker), "simulate", "--nodes", "1", "--steps", "50", "--constants", str(path), "--json"],
                          check=True, stdout=subprocess.PIPE, text=True)
    return next(r for r in json.loads(done.stdout)["rows"] if r["mode"] == MODES[rung])


def main(ctx, argv):
    p = argparse.ArgumentParser(prog="scripts/bench/run validate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--batch", type=int, default=256, help="samples of a step where the constants are taken (256)")
    options(p)
    a = p.parse_args(argv)
    results = Results(ctx.work / "validate")
    where = machine()
    data = Data(ctx.work, ctx.model, (STEPS + 5) * a.batch, a.max_pixels)
    data.make()

    def row(server, rung, latency_ms, batch, **given):
        return measured(ctx, a, results, data, server, spec_of(ctx, a, rung, batch, latency_ms, **given))

    with Server(data, LATENCY_MS) as server:
        build(ctx, a, data, server, LATENCY_MS)
        rows = {"serial": row(server, "serial", LATENCY_MS, a.batch, steps=SERIAL_STEPS)}
        step_s = rows["serial"]["step_s"]
        for rung in ("threads", "async", "threads + queue", "async + queue", "workers, references", "stoker, warm"):
            rows[rung] = row(server, rung, LATENCY_MS, a.batch, steps=STEPS, step_s=step_s)
        rows["stoker, unhindered"] = row(server, "stoker, warm", LATENCY_MS, a.batch, step_s=0.0, **epochs(data, a.batch))
    constants = calibrated(rows, a.batch, data.count)
    out = []
    for rung, latency_ms, batch_share, readers, workers, reader_share in FORETOLD:
        batch, readers = int(a.batch * batch_share), readers or a.threads
        # A step for fewer samples is as much shorter; Stoker gets one that its reader can hardly keep up with.
        step = step_s * batch_share if reader_share is None else reader_share * batch / rows["stoker, unhindered"]["samples_s"]
        said = foretold(ctx, constants[rung], rung, latency_ms, batch, readers, workers or measure.CORES, step, a.depth)
        with Server(data, latency_ms) as server:
            length = {"steps": SERIAL_STEPS if rung == "serial" else STEPS * a.batch // batch}
            if reader_share is not None:
                length = epochs(data, batch)
            found = row(server, rung, latency_ms, batch, readers=readers, workers=workers, step_s=step, **length)
        out.append({"rung": rung, "latency_ms": latency_ms, "batch": batch, "readers": readers, "workers": workers, "step_s": step,
                    "foretold_ratio": said["wait_ratio"], "measured_ratio": found["wait_ratio"],
                    "foretold_s": said["wait_seconds"] + step, "measured_s": found["wait_s"] + step})
        results.add(dict(out[-1], what="validation"))
    text = "\n".join([where, "", *table(a, out, step_s)]) + "\n"
    results.write("table.md", text)
    print(text)


def epochs(data, batch):
    """Steps of all epochs, and of those that do not count."""
    steps = data.count // batch
    return {"steps": EPOCHS * steps, "settle": SETTLED * steps}


def table(a, out, step_s):
    """Markdown: what was foretold, what was measured, and how far off it is."""
    lines = ["Constants from %g ms, batches of %d, steps of %.2f s." % (LATENCY_MS, a.batch, step_s), "",
             "| rung | latency | batch | readers | waiting, foretold | measured | error | seconds a step, foretold | measured | error |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    within = 0
    for r in out:
        errors = []
        for name in ("ratio", "s"):
            said, found = r["foretold_" + name], r["measured_" + name]
            errors.append((said - found) / found if found > 1e-4 else 0.0)
        within += all(abs(error) <= GOAL for error in errors)
        readers = "%d x %d" % (r["workers"], r["readers"]) if r["workers"] else str(r["readers"])
        lines.append("| %s | %g ms | %d | %s | %.1f %% | %.1f %% | %+.0f %% | %.2f | %.2f | %+.0f %% |" % (
            r["rung"], r["latency_ms"], r["batch"], readers, 100 * r["foretold_ratio"], 100 * r["measured_ratio"],
            100 * errors[0], r["foretold_s"], r["measured_s"], 100 * errors[1]))
    return lines + ["", "Both within %.0f %%: %d of %d." % (100 * GOAL, within, len(out))]
