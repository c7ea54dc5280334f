"""Entry of scripts/bench-build: runs the wanted measurements, appends JSON lines, prints Markdown tables."""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import kernels
import measure
import memory
import plan
import remote
import text
import throughput

PARTS = {"throughput": throughput, "kernels": kernels, "plan": plan, "memory": memory, "text": text, "remote": remote}


class Context:
    """Where things are and how much to do; passed to every part."""

    def __init__(self, a):
        self.work, self.model, self.oracles, self.wheels = a.work, a.model, a.oracles, a.wheels
        self.stoker, self.bench_image = a.stoker, a.bench_image
        self.rounds, self.seconds, self.scale, self.sizes = a.rounds, a.seconds, a.scale, a.size
        self.outputs = {measure.file_system(path): path for path in [a.work, *a.output]}
        self.rows = []

    def has_oracle(self, name):
        """Whether the virtual environment of that peer was made."""
        return (self.oracles / name / "bin" / "python").exists()

    def emit(self, row):
        """Keep one result and write it down at once."""
        self.rows.append(row)
        with open(self.work / "results.jsonl", "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")


def machine(ctx):
    """What the numbers depend on, without names."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    head = subprocess.run(["git", "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    ctx.emit({"what": "machine", "cpu": model, "cores": measure.CORES, "load": os.getloadavg()[0], "commit": head})


def main():
    p = argparse.ArgumentParser(prog="scripts/bench-build")
    p.add_argument("parts", nargs="*", metavar="PART", help="of %s; default: all" % ", ".join(PARTS))
    for name in ("work", "model", "oracles", "wheels"):
        p.add_argument("--" + name, type=Path, required=True, help=argparse.SUPPRESS)
    p.add_argument("--stoker", type=Path, help=argparse.SUPPRESS)
    p.add_argument("--bench-image", type=Path, help=argparse.SUPPRESS)
    p.add_argument("--output", type=Path, action="append", default=[], help=argparse.SUPPRESS)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=8, help="of one peer run")
    p.add_argument("--scale", type=float, default=1, help="share of the full number of records")
    p.add_argument("--size", action="append", help="only this image size (may be repeated)")
    a = p.parse_args()
    unknown = [name for name in a.parts if name not in PARTS]
    if unknown:
        p.error("unknown part `%s`" % unknown[0])
    a.work.mkdir(parents=True, exist_ok=True)
    ctx = Context(a)
    machine(ctx)
    chosen = a.parts or list(PARTS)
    for name in chosen:
        PARTS[name].run(ctx)
    for name in chosen:
        print("\n".join(PARTS[name].table(ctx.rows)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
