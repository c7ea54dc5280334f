"""scripts/bench/run scale: what each setting does, one at a time around the defaults, and a few together.

Each point is `bench_read point` in processes of its own, on a cache that it has made; every byte, id and label of one epoch is held
against what was written, and sampled bytes of all others.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys

from build import measure
from results import Results, machine
from scale import plot, points

FACTORS = ("backend", "verify", "threads", "prefetch_batches", "prefetch_bytes", "batch", "cold")


class Failed(Exception):
    """A process of a point ended badly; what it said."""


def make(ctx, cache, one):
    """The cache of a point, in place of any other."""
    shutil.rmtree(cache, ignore_errors=True)
    print("making a cache: %s" % ", ".join(points.shown(name, one[name]) for name in points.CACHE[:2]), file=sys.stderr)
    command = [ctx.bench_read, "make", cache]
    for name in points.CACHE:
        command += ["--" + name.replace("_", "-"), one[name]]
    subprocess.run(list(map(str, command)), check=True)


def measured(ctx, cache, one, seconds):
    """Runs the processes of a point at once -> their figures together."""
    command = [ctx.bench_read, "point", cache, "--seconds", seconds]
    for name in FACTORS:
        if one[name] is not None:
            command += ["--" + name.replace("_", "-"), one[name]]
    children = [subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for _ in range(one["processes"])]
    said = [child.communicate() for child in children]
    for child, (_, errors) in zip(children, said):
        if child.returncode != 0:
            raise Failed(errors.strip()[-300:])
    rows = [json.loads(out) for out, _ in said]
    total = {name: sum(row[name] for row in rows) for name in ("bytes", "cpu", "samples", "anonymous_bytes", "disk_bytes", "checked",
                                                               "memcpy_bytes", "memcpy_cpu")}
    return {"gb_s": sum(row["bytes"] / 1e9 / row["wall"] for row in rows), "gb_cpu_s": total["bytes"] / 1e9 / total["cpu"],
            "memcpy_gb_cpu_s": total["memcpy_bytes"] / 1e9 / total["memcpy_cpu"],
            "first_ms": 1000 * max(row["first_seconds"] for row in rows),
            **{name: total[name] for name in ("samples", "anonymous_bytes", "disk_bytes", "checked")}}


def main(ctx, argv):
    p = argparse.ArgumentParser(prog="scripts/bench/run scale", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--seconds", type=float, default=2, help="of a warm point (2); a cold one takes an epoch")
    p.add_argument("--megabytes", type=int, default=2048, help="of a cache, at most (2048, which the largest shards need)")
    p.add_argument("--fresh", action="store_true", help="measure what was measured with these settings before, too")
    a = p.parse_args(argv)
    results = Results(ctx.work / "scale")
    where = machine()
    points.DEFAULT["megabytes"] = a.megabytes
    sections = points.sections(measure.CORES)
    cache, holds, rows = ctx.work / "scale" / "cache", None, []
    for one in points.distinct(sections):
        identity = {"what": "point", "seconds": a.seconds, **one}
        row = None if a.fresh else results.latest(**identity)
        if row is None:
            wanted = [one[name] for name in points.CACHE]
            if wanted != holds:
                make(ctx, cache, one)
                holds = wanted
            print("measuring: %s" % difference(one), file=sys.stderr)
            try:
                row = results.add({**identity, **measured(ctx, cache, one, a.seconds)})
            except Failed as error:
                row = {**identity, "failed": str(error)}
        rows.append((one, row))
    shutil.rmtree(cache, ignore_errors=True)
    results.write("table.md", "\n".join([where, "", *table(sections, rows)]) + "\n")
    results.write("scale.svg", plot.bars(sections, found(rows)))
    print((results.folder / "table.md").read_text(encoding="utf-8"))
    print("plot: `%s`" % (results.folder / "scale.svg"), file=sys.stderr)
    return 1 if any("failed" in row for _, row in rows) else 0


def difference(one):
    """What a point changes, in words."""
    changed = [name for name in one if one[name] != points.point()[name] and name not in ("megabytes", "batch")]
    return ", ".join("%s %s" % (name.replace("_", " "), points.shown(name, one[name])) for name in changed) or "the defaults"


def found(rows):
    """A function from a point to its row."""
    return lambda one: next(row for other, row in rows if other == one)


def table(sections, rows):
    """Markdown: one part a section, one line a point."""
    row_of, out = found(rows), []
    copies = {size: statistics.median([r["memcpy_gb_cpu_s"] for one, r in rows if one["sample_bytes"] == size and "failed" not in r] or [1])
              for size in {one["sample_bytes"] for one, _ in rows}}
    for title, names, chosen in sections:
        out += ["**%s**" % title, "", "| %s | GB/s | GB per CPU-second | of memcpy | first batch | anonymous memory | from disk | samples checked |"
                % ", ".join(names).replace("_", " "), "|---|---|---|---|---|---|---|---|"]
        for one in chosen:
            r = row_of(one)
            if "failed" in r:
                out.append("| %s | FAILS: %s | | | | | | |" % (points.label(names, one), " ".join(r["failed"].split())))
                continue
            out.append("| %s | %.2f | %.2f | %.2f | %.1f ms | %.0f MiB | %.2f GB | %d |" % (
                points.label(names, one), r["gb_s"], r["gb_cpu_s"], r["gb_cpu_s"] / copies[one["sample_bytes"]], r["first_ms"],
                r["anonymous_bytes"] / points.MIB, r["disk_bytes"] / 1e9, r["checked"]))
        out.append("")
    return out
