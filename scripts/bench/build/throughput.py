"""Samples per second and core: `stoker build` against transformers 5 and 4 over the same local files.

Contenders take turns in every round and the ratio is taken within a round, so that a slow minute of the machine hits
all of them. A run with one worker is kept on one core. The peer's start-up is left out and it writes nothing; stoker's
whole run is counted, from start to commit, with every byte written, to each of the output folders in turn.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import corpus
import measure

PEERS = {"transformers 5": "hf5", "transformers 4": "hf4"}
FLOORS = {  # size: (times transformers 5, times transformers 4)
    "1024x768": (3.0, 8.0), "1920x1080": (2.2, 7.0), "4000x3000": (1.7, 4.0),
}


def peer_run(ctx, oracle, records, max_pixels, workers, seconds):
    """`workers` peer processes at once; -> samples per second and core, by wall and by CPU time."""
    go = ctx.work / "go"
    go.unlink(missing_ok=True)
    command = [ctx.oracles / oracle / "bin" / "python", Path(__file__).with_name("peer.py"), ctx.model, records,
               max_pixels or "-", seconds, go]
    started = [subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                preexec_fn=measure.pin(workers))
               for _ in range(workers)]
    for child in started:
        if child.stdout.readline().strip() != "ready":
            raise SystemExit("the peer did not start: `%s`" % " ".join(map(str, command)))
    busy, wall = measure.busy_seconds(), time.perf_counter()
    go.touch()
    rows = [json.loads(child.communicate()[0]) for child in started]
    wall = time.perf_counter() - wall
    cpu = sum(r["cpu_s"] for r in rows)
    samples = sum(r["samples"] for r in rows)
    return {"workers": workers, "version": rows[0]["transformers"], "tokens": rows[0]["tokens"],
            "text_tokens": rows[0]["text_tokens"],
            "per_core_wall": sum(r["samples"] / r["wall_s"] for r in rows) / workers,
            "per_cpu_s": samples / cpu, "busy_share": cpu / wall / measure.CORES,
            "others_share": max(0.0, (measure.busy_seconds() - busy - cpu) / wall / measure.CORES)}


def stoker_build(ctx, records, max_pixels, threads, out, extra=()):
    """The command of one build."""
    command = [ctx.stoker, "build", "--input", records, "--model", ctx.model, "--output", out, "--threads", threads]
    if max_pixels:
        command += ["--max-pixels", max_pixels]
    return command + list(extra)


def stoker_run(ctx, records, count, max_pixels, threads, folder):
    """One whole build into an empty folder below `folder`."""
    out = folder / "cache"
    shutil.rmtree(out, ignore_errors=True)
    row = measure.run(stoker_build(ctx, records, max_pixels, threads, out), log=ctx.work / "build.log", cores=threads)
    shutil.rmtree(out)
    row.update(workers=threads, per_core_wall=count / row["wall_s"] / threads, per_cpu_s=count / row["cpu_s"])
    return row


def bound_run(ctx, records, count, max_pixels):
    """CPU ms a sample for bare decoding and for the other image steps, from the repository's own measuring program."""
    if ctx.bench_image is None:
        return None
    command = [ctx.bench_image, max_pixels or 16777216, Path(records).parent / "images"]
    done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def best(rows):
    """The better of the runs with 1 and with more workers, by samples per core."""
    return max(rows, key=lambda r: r["per_core_wall"])


def run(ctx):
    """Measure every size; -> rows for the report."""
    corpus.write_pictures(ctx.work / "pictures", ctx.wheels)
    for size, (_, _, _, count, max_pixels) in corpus.SIZES.items():
        if ctx.sizes and size not in ctx.sizes:
            continue
        count = max(8, int(count * ctx.scale))
        folder = ctx.work / ("records-%s-%d" % (size, count))
        records = corpus.write_records(folder, ctx.work / "pictures" / size, count)
        for number in range(ctx.rounds):
            row = {"what": "throughput", "size": size, "round": number, "samples": count}
            for name, oracle in PEERS.items():
                if ctx.has_oracle(oracle):
                    row[name] = best([peer_run(ctx, oracle, records, max_pixels, w, ctx.seconds)
                                      for w in sorted({1, measure.CORES})])
            for output, path in ctx.outputs.items() if ctx.stoker else ():
                runs = [stoker_run(ctx, records, count, max_pixels, t, path) for t in sorted({1, measure.CORES})]
                row["stoker to " + output] = dict(best(runs), all_cores_busy=runs[-1]["busy_share"])
            row["image_steps"] = bound_run(ctx, records, count, max_pixels)
            ctx.emit(row)
            print("%s round %d: %s" % (size, number, {
                k: round(v["per_core_wall"], 1) for k, v in row.items()
                if isinstance(v, dict) and "per_core_wall" in v}), file=sys.stderr)


def table(rows):
    """Markdown: medians over rounds, ratios within rounds; a line for each size and file system written to."""
    out = ["| images | written to | stoker samples/s a core | transformers 5.23 | ratio (floor; bound) | transformers 4.57 | ratio (floor; bound) | cores busy |",
           "|---|---|---|---|---|---|---|---|"]
    for size, floors in FLOORS.items():
        mine = [r for r in rows if r["what"] == "throughput" and r["size"] == size]
        for key in sorted({k for r in mine for k in r if k.startswith("stoker to ")}):
            cells = [size, key.removeprefix("stoker to "), number([r[key]["per_core_wall"] for r in mine])]
            for name, floor in zip(PEERS, floors):
                both = [r for r in mine if name in r]
                cells.append(number([r[name]["per_core_wall"] for r in both]))
                ratio = number([r[key]["per_core_wall"] / r[name]["per_core_wall"] for r in both])
                bound = number([1000 / r["image_steps"]["decode_ms"] / r[name]["per_core_wall"]
                                for r in both if r.get("image_steps")])
                cells.append("%s (%g; %s)" % (ratio, floor, bound))
            cells.append(number([100 * r[key]["all_cores_busy"] for r in mine]) + " %")
            out.append("| " + " | ".join(cells) + " |")
    return out


def number(values):
    """The median with about three digits, or a dash."""
    return "%.3g" % measure.middle(values) if values else "-"
