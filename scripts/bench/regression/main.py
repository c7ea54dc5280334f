"""Entry of scripts/bench/guard: counts and ratios of the hot paths against the baseline; fails where one has lost 15 %.

A gain of as much is told, so that it becomes the baseline and cannot be lost unseen.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from regression import cases, counts

# What counts as a loss, and as a gain.
TOLERANCE = 0.15
TRIES = 3
BASELINE = Path(__file__).resolve().parent / "baseline.json"
ACCEPT = "hint: if that is meant, `scripts/bench/guard --accept` makes what is seen the baseline, which is then committed"


class Context:
    """Where things are."""

    def __init__(self, a):
        self.stoker, self.work, self.python = a.stoker.resolve(), a.work.resolve(), sys.executable
        self.bench = Path(__file__).resolve().parent.parent
        self.root = self.bench.parent.parent


def machine():
    """What counts may depend on: the instructions that valgrind has for programs here."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return "%s%s" % (platform.machine(), " avx2" if " avx2" in flags else "")


def counted(ctx, case):
    """One try of a case -> its instructions, and what came out."""
    cases.clear(case.scratch)
    seen, out = counts.once(ctx, case.command, counts.profile_of(ctx, case.name))
    if case.less:
        less, other = counts.once(ctx, case.less, counts.profile_of(ctx, case.name).with_suffix(".less"))
        seen -= less
        if other != out:
            raise SystemExit("error: two runs of `%s` gave other batches" % case.name)
    return {"instructions": seen, "result": case.result(out)}


def ratios(ctx, cache):
    """One try of the ratios -> each, and what was read."""
    out = subprocess.run([ctx.python, "-m", "regression.ratios", cache], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True,
                         env=counts.environment(ctx)).stdout
    report = json.loads(out)
    rates = ", ".join("%s %.1f" % (name, rate) for name, rate in report["gb_cpu_s"].items())
    print("GB per CPU-second: %s" % rates, file=sys.stderr)
    return {name: {"ratio": ratio, "result": "%x" % report["pixels"]} for name, ratio in report["ratios"].items()}


def better(one, other):
    """The better of two tries of a case."""
    if "ratio" in one:
        return max(one, other, key=lambda row: row["ratio"])
    return min(one, other, key=lambda row: row["instructions"])


def loss(before, now):
    """The share that is lost; negative for a gain."""
    if "ratio" in before:
        return 1 - now["ratio"] / before["ratio"]
    return now["instructions"] / before["instructions"] - 1


def lost(before, now):
    """Whether a case is no longer what it was."""
    return before is None or before["result"] != now["result"] or loss(before, now) > TOLERANCE


def repeated(measure, before):
    """The best of some tries; one is enough unless it has lost."""
    best = measure()
    for _ in range(TRIES - 1):
        if not any(lost(before.get(name), row) for name, row in best.items()):
            break
        again = measure()
        best = {name: better(row, again[name]) for name, row in best.items()}
    return best


def shown(row):
    """A figure for people."""
    return "%.3f of the ceiling" % row["ratio"] if "ratio" in row else "%.1f million instructions" % (row["instructions"] / 1e6)


def fault(ctx, name, before, now):
    """What is wrong with a case: an error and its hint, or an empty list."""
    if before is None:
        return ["error: the guard's case has no baseline: `%s`" % name]
    if before["result"] != now["result"]:
        return ["error: the guard's case does not do its baseline's work: `%s`" % name,
                "hint: it made `%s`, and now makes `%s`" % (before["result"], now["result"])]
    if loss(before, now) <= TOLERANCE:
        return []
    said = ["error: lost %.0f %% (more than %.0f), baseline %s, seen %s: `%s`" % (
        100 * loss(before, now), 100 * TOLERANCE, shown(before), shown(now), name)]
    if "instructions" in now:
        said.append("hint: `callgrind_annotate %s` says where instructions go" % counts.profile_of(ctx, name))
    return said


def judge(ctx, before, seen):
    """Prints a line a case -> whether all are well."""
    faults = []
    for name, now in seen.items():
        wrong = fault(ctx, name, before.get(name), now)
        change = "%+.1f %%" % (-100 * loss(before[name], now)) if name in before else "new"
        print("%-14s %-28s %9s  %s" % (name, shown(now), change, "FAILED" if wrong else "ok"))
        if not wrong and loss(before[name], now) < -TOLERANCE:
            print("hint: `scripts/bench/guard --accept` keeps that gain from being lost unseen", file=sys.stderr)
        faults += wrong
    missing = before.keys() - seen.keys()
    faults += ["error: the baseline has a case that the guard has not: `%s`" % name for name in sorted(missing)]
    if faults:
        print("\n".join([*faults, ACCEPT]), file=sys.stderr)
    return not faults


def main():
    p = argparse.ArgumentParser(prog="scripts/bench/guard", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("work", "stoker"):
        p.add_argument("--" + name, type=Path, required=True, help=argparse.SUPPRESS)
    p.add_argument("--accept", action="store_true", help="make what is seen the baseline")
    a = p.parse_args()
    ctx = Context(a)
    kind, baseline = machine(), json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    before = {} if a.accept else baseline.get(kind)
    if before is None:
        raise SystemExit("error: the guard has no baseline for this kind of machine: `%s`\n%s" % (kind, ACCEPT))
    started = time.monotonic()
    all_cases, cache = cases.prepare(ctx), cases.large(ctx)
    prepared = time.monotonic()
    # Counts depend on no other work, so every core has a case at a time; ratios have the machine to themselves.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        work = [(case.name, pool.submit(repeated, lambda case=case: {case.name: counted(ctx, case)}, before)) for case in all_cases]
        seen = {name: row for _, future in work for name, row in future.result().items()}
    counted_at = time.monotonic()
    seen.update(repeated(lambda: ratios(ctx, cache), before))
    print("prepared in %.0f s, counted in %.0f s, measured in %.0f s" % (
        prepared - started, counted_at - prepared, time.monotonic() - counted_at), file=sys.stderr)
    shutil.rmtree(cache)
    if a.accept:
        baseline[kind] = {name: dict(row, ratio=round(row["ratio"], 3)) if "ratio" in row else row for name, row in seen.items()}
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n", encoding="utf-8")
        print("accepted %d cases as the baseline" % len(seen), file=sys.stderr)
        return 0
    return 0 if judge(ctx, before, seen) else 1


if __name__ == "__main__":
    sys.exit(main())
