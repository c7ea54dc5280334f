"""Entry of scripts/bench/run: finds the benchmark by its name and gives it the rest of the command line."""

import argparse
import sys
from pathlib import Path

import build.run
import calls.run
import ladder.run
import peers.run
import scale.run
import validate.run

BENCHMARKS = {"ladder": ladder.run.main, "validate": validate.run.main, "peers": peers.run.main, "scale": scale.run.main,
              "build": build.run.main, "calls": calls.run.main}


def main():
    p = argparse.ArgumentParser(prog="scripts/bench/run")
    for name in ("work", "model", "stoker"):
        p.add_argument("--" + name, type=Path, required=True, help=argparse.SUPPRESS)
    for name in ("peers", "bench-open", "bench-read", "python4", "bench-image", "pillow-simd"):
        p.add_argument("--" + name, type=Path, help=argparse.SUPPRESS)
    p.add_argument("name", choices=BENCHMARKS, metavar="NAME", help="of %s" % ", ".join(BENCHMARKS))
    p.add_argument("options", nargs=argparse.REMAINDER, help="NAME --help explains them")
    a = p.parse_args()
    return BENCHMARKS[a.name](a, a.options)


if __name__ == "__main__":
    sys.exit(main())
