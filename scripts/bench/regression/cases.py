"""The guard's cases: commands whose instructions are counted.

Each is narrow, so that a loss in one step is not lost among others, and long enough that starting the program is a small part of it.
Each says what came out of it; that is compared too, so that a case which does other work than the baseline's is not taken for a fast one.
"""

import hashlib
import json
import shutil
import subprocess

from regression import corpus

READ = "regression.batches"


class Case:
    """A command that is counted. `scratch` is removed before each run; `less` is a second command, whose count is taken off."""

    def __init__(self, name, command, result, scratch=None, less=None):
        self.name, self.command, self.result, self.scratch, self.less = name, command, result, scratch, less


def fingerprint(out):
    """Of a build: that of the cache."""
    return json.loads(out)["fingerprint"]


def plan(out):
    """Of a dry run: the plan's two identities, which nothing of the machine is in."""
    report = json.loads(out)
    return "%s %s" % (report["image_plan_id"], report["text_plan_id"])


def digest(out):
    """Of a command that prints nothing of the machine."""
    return hashlib.sha256(out.encode()).hexdigest()[:32]


def packs(out):
    """Of a pack run: how many packs, and how full they are."""
    report = json.loads(out)
    return "%s %s" % (report["packs"], report["tokens"])


def build(stoker, root, source, out, *more):
    """The command that builds a cache from `source` with the repository's small model."""
    return [stoker, "build", "--input", source, "--model", root / "tests" / "models" / "tiny", "--output", out, "--json", *more]


def made(command):
    """Runs a command here and now, at full speed -> what it printed."""
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit("error: `%s` failed\n%s" % (" ".join(map(str, command)), done.stderr))
    return done.stdout


def large(ctx):
    """A cache of 78 pictures of 3 MB each, read from memory by the ratios -> its folder."""
    source = ctx.work / "large-records"
    corpus.chats(source, corpus.copied(source, corpus.shipped(ctx.root), copies=6))
    made(build(ctx.stoker, ctx.root, source, ctx.work / "large", "--min-pixels", 1_003_520, "--partitions", 2))
    return ctx.work / "large"


def prepare(ctx):
    """Makes what the cases read -> the cases."""
    pictures, small = corpus.shipped(ctx.root), ctx.work / "small"
    jpegs = corpus.chats(ctx.work / "jpegs", corpus.inside(path for path in pictures if path.suffix == ".jpg"))
    every = corpus.chats(ctx.work / "every", corpus.inside(pictures))
    texts = corpus.chats(ctx.work / "texts", 600 * [None])
    foreign = corpus.chats(ctx.work / "foreign", 150 * [None], foreign=10)
    many = corpus.chats(ctx.work / "many", 20_000 * [None], words=24)
    spread = corpus.chats(ctx.work / "spread", 4_800 * [None], words=24)
    corpus.chats(small, corpus.copied(small, pictures, copies=8))
    # Caches to read are made at full speed; their building is counted elsewhere.
    chats, shards, mixed = ctx.work / "chats", ctx.work / "shards", ctx.work / "mixed"
    made(build(ctx.stoker, ctx.root, texts, chats))
    made(build(ctx.stoker, ctx.root, spread, shards, "--partitions", 240))
    made(build(ctx.stoker, ctx.root, small, mixed, "--max-pixels", 65_536))
    placement = ctx.work / "placement.json"
    placement.write_text(made([ctx.stoker, "place", shards, "--nodes", 8]), encoding="utf-8")

    def building(name, source, *more):
        out = ctx.work / ("built-" + name.replace(" ", "-"))
        return Case(name, build(ctx.stoker, ctx.root, source, out, "--threads", 1, *more), fingerprint, scratch=out)

    def batches(name, dtype):
        def command(epochs):
            return [ctx.python, "-m", READ, mixed, dtype, epochs]
        return Case(name, command(3), str.strip, less=command(1))

    return [
        # The long ones first, so that no core is left with one at the end.
        batches("float32", "float32"),
        batches("bfloat16", "bfloat16"),
        building("decode", jpegs, "--max-pixels", 65_536),
        building("resize", every, "--min-pixels", 786_432),
        building("resize pil", every, "--min-pixels", 786_432, "--profile", "pil_path"),
        building("text", texts),
        building("text foreign", foreign),
        Case("plan", build(ctx.stoker, ctx.root, many, ctx.work / "none", "--threads", 1, "--dry-run"), plan),
        Case("pack", [ctx.stoker, "pack", shards, "--max-tokens", 4096, "--threads", 1, "--json"], packs, scratch=shards / "packs"),
        Case("read", [ctx.stoker, "read", chats, "--batch-size", 8, "--epochs", 12, "--json"], digest),
        Case("rank", [ctx.stoker, "read", shards, "--batch-size", 256, "--world-size", 64, "--rank", 7, "--nodes", 8,
                      "--placement", placement, "--epochs", 8, "--json"], digest),
        Case("place", [ctx.stoker, "place", shards, "--nodes", 64], digest),
        Case("deal", [ctx.stoker, "stats", shards, "--balance", "--ranks", 64, "--nodes", 8, "--json"], digest),
    ]


def clear(scratch):
    """Removes what an earlier run of a case has left."""
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
