"""scripts/bench/run build: `stoker build` against its floors, its peers and the limits of its stages.

A part is one of:
  throughput  samples/s a core, beside transformers 5.23 and 4.57 (fast and slow), torchvision alone and LitData's optimize
  stages      CPU time of each stage beside its limit: libjpeg-turbo, the tokenizer, memcpy and hashes, the disk
  kernels     the two resize kernels beside torchvision, Pillow and Pillow-SIMD
  plan        the plan of 10,000,000 records of 2 KB
  memory      peak memory: 100,000 chats, 1,600 large pictures, 20 GB of records; two budgets each
  text        the text of 100,000 records built again over kept pictures
  remote      from S3 with 30 ms a GET, beside local files
How long each takes stands in scripts/bench/README.md; --scale makes all sets smaller.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from build import corpus, kernels, measure, memory, plan, reference, remote, stages, text, throughput
from results import Results, machine

PARTS = {"throughput": throughput, "stages": stages, "kernels": kernels, "plan": plan, "memory": memory, "text": text, "remote": remote}


class Set(NamedTuple):
    """Records with pictures of one size."""

    records: Path
    pictures: Path
    count: int
    max_pixels: int | None
    options: list


class Bench:
    """Where things are, how much to do, and what is known already; passed to every part."""

    def __init__(self, ctx, a):
        self.work, self.model, self.stoker = ctx.work, ctx.model, ctx.stoker
        self.python4, self.bench_image, self.pillow_simd = ctx.python4, ctx.bench_image, ctx.pillow_simd
        self.rounds, self.seconds, self.scale, self.fresh = a.rounds, a.seconds, a.scale, a.fresh
        self.contender = a.contender
        self.sizes = a.size or list(corpus.SIZES)
        self.results = Results(ctx.work / "build")
        self.folder = self.results.folder
        self.output = (a.output or self.folder).resolve()
        self.output.mkdir(parents=True, exist_ok=True)
        self.disk = measure.file_system(self.output)

    def measured(self, identity, make):
        """The last row that was measured with these settings, or a new one."""
        identity = {**identity, "cores": measure.CORES}
        row = None if self.fresh else self.results.latest(**identity)
        if row is None:
            print("measuring: " + ", ".join("%s %s" % pair for pair in identity.items()), file=sys.stderr)
            row = self.results.add({**identity, **make()})
        return row

    def pictures_of(self, size):
        """The folder of the pictures of one size, how many pixels of them are kept, and the option that says so."""
        max_pixels = corpus.SIZES[size][4]
        return self.work / "pictures" / size, max_pixels, ["--max-pixels", max_pixels] if max_pixels else []

    def count_of(self, size):
        """How many records of one size there are: at least those that are compared byte by byte."""
        return max(reference.CHECKED, int(corpus.SIZES[size][3] * self.scale))

    def set_of(self, size):
        """The records of one size, written if they are not there."""
        count = self.count_of(size)
        pictures, max_pixels, options = self.pictures_of(size)
        records = corpus.write_records(self.folder / ("records-%s-%d" % (size, count)), pictures, count)
        return Set(records, pictures, count, max_pixels, options)


def main(ctx, argv):
    p = argparse.ArgumentParser(prog="scripts/bench/run build", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("parts", nargs="*", metavar="WHAT", help="parts to measure (all)")
    p.add_argument("--rounds", type=int, default=3, help="turns of everything that is compared (3)")
    p.add_argument("--seconds", type=float, default=5, help="of one run of a peer that writes nothing (5)")
    p.add_argument("--scale", type=float, default=1, help="share of the full number of records (1)")
    p.add_argument("--size", action="append", choices=corpus.SIZES, help="only pictures of this size (may be given again)")
    p.add_argument("--contender", metavar="TEXT", help="throughput: only peers whose names hold this, such as fast (all)")
    p.add_argument("--output", type=Path, help="folder on the disk that caches are written to, which bounds wall times (target/bench/build)")
    p.add_argument("--fresh", action="store_true", help="measure what was measured with these settings before, too")
    a = p.parse_args(argv)
    unknown = [name for name in a.parts if name not in PARTS]
    if unknown:
        p.error("there is no part `%s`" % unknown[0])
    if a.contender and not any(a.contender in name for name in (*throughput.PEERS, throughput.LITDATA)):
        p.error("no peer's name holds `%s`" % a.contender)
    bench = Bench(ctx, a)
    for name, part in PARTS.items():
        if not a.parts or name in a.parts:
            lines = ["## " + name, "", machine(), "", *part.run(bench)]
            bench.results.write(name + ".md", "\n".join(lines).rstrip() + "\n")
            print("\n".join(lines) + "\n", flush=True)
    # What was measured in other runs stays in the table.
    found = [bench.folder / (name + ".md") for name in PARTS]
    bench.results.write("table.md", "\n".join(path.read_text(encoding="utf-8") for path in found if path.exists()))
