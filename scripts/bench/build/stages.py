"""The CPU time of each stage of `stoker build`, from its own summary, beside what bounds that stage, on one core."""

import json
import os
import shutil
import subprocess
import sys

from build import corpus, measure, stoker
from build.kernels import BENCH, image_steps


def turn(bench, of):
    """One build on one thread, then the limits over its own pictures, texts and bytes."""
    out = bench.output / "cache"
    row = stoker.run(bench, of.records, of.count, out, [*of.options, "--threads", 1], cores=1)
    spec = {"cache": str(out), "model": str(bench.model), "records": str(of.records), "samples": of.count,
            "row_bytes": row["bytes"] // of.count, "folder": str(bench.output)}
    done = subprocess.run([sys.executable, "-B", "-m", "build.limits", json.dumps(spec)], check=True, stdout=subprocess.PIPE,
                          text=True, env=dict(os.environ, PYTHONPATH=str(BENCH)), preexec_fn=measure.pin(1))
    shutil.rmtree(out)
    return {**row, "limits": json.loads(done.stdout.splitlines()[-1]), "image_steps": image_steps(bench, of)}


def lines(row, count):
    """(stage, its CPU ms a sample, its limit, the limit's CPU ms a sample)."""
    limits, steps, stages = row["limits"], row["image_steps"], row["stages"]
    mb = row["bytes"] / count / 1e6
    hashes = mb * sum(limits[name + "_ns_byte"] for name in ("copy", "xxh3", "blake3"))
    per = {name: 1000 * seconds / count for name, seconds in stages.items()}
    whole = 1000 * row["cpu_s"] / count
    every = steps["decode_ms"] + limits["tokenizer_ms"] + hashes + mb * limits["write_cpu_ns_byte"]
    return [
        ("decode, resize, patches", per["decode"], "libjpeg-turbo alone", steps["decode_ms"]),
        ("parse, render, tokenise, label", per["tokenise"], "the tokenizer alone (tokenizers %s)" % limits["tokenizers"],
         limits["tokenizer_ms"]),
        ("checksums, shards", per["write"], "memcpy, XXH3 and BLAKE3 of the bytes", hashes),
        ("the rest: start, plan, files, the disk's thread, commit", whole - sum(per.values()),
         "%s write of the bytes" % ("O_DIRECT" if limits["direct"] else "plain"), mb * limits["write_cpu_ns_byte"]),
        ("all", whole, "all of these", every),
    ]


def run(bench):
    """All sizes -> Markdown, medians over rounds."""
    corpus.write_pictures(bench.work / "pictures", bench.work / "wheels")
    out = []
    for size in bench.sizes:
        of = bench.set_of(size)
        settings = {"what": "stages", "size": size, "records": of.count, "output": bench.disk}
        rows = [bench.measured({**settings, "round": number}, lambda: turn(bench, of)) for number in range(bench.rounds)]
        out += ["Pictures of %s, %.2f MB a sample, one thread on one core, written to %s, medians of %d rounds:" % (
            size, rows[0]["bytes"] / of.count / 1e6, bench.disk, bench.rounds), "",
            "| stage | stoker, CPU ms a sample | limit | CPU ms a sample | times the limit |", "|---|---|---|---|---|"]
        for parts in zip(*(lines(row, of.count) for row in rows)):
            ours, theirs = measure.middle([part[1] for part in parts]), measure.middle([part[3] for part in parts])
            out.append("| %s | %.2f | %s | %.2f | %.2f |" % (parts[0][0], ours, parts[0][2], theirs, ours / theirs))
        steps = {name: measure.middle([row["image_steps"][name] for row in rows]) for name in rows[0]["image_steps"]}
        wall = measure.middle([1000 * row["wall_s"] / of.count for row in rows])
        disk = measure.middle([row["bytes"] / of.count * row["limits"]["write_ns_byte"] / 1e6 for row in rows])
        out += ["", "The first alone: decoding %.2f ms, resizing %.2f, patches %.2f. Wall time %.2f ms a sample; the disk needs %.2f." % (
            steps["decode_ms"], steps["resize_torch_ms"], steps["patchify_ms"], wall, disk), ""]
    return out
