"""A build from S3 whose every GET takes 30 ms longer, against the same files on a local disk.

The build keeps to one core and the server to another, so that the server's own work does not count.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import corpus
import measure
import throughput

DELAY_MS = 30
SIZE = "1920x1080"
FLOOR_SHARE = 0.10


def run(ctx):
    """Local and remote take turns. The first line of the server names its endpoint and its two keys."""
    if ctx.stoker is None:
        return
    corpus.write_pictures(ctx.work / "pictures", ctx.wheels)
    _, _, _, count, max_pixels = corpus.SIZES[SIZE]
    count = max(8, int(count * ctx.scale))
    # The server shows the folders below its root as buckets.
    root = ctx.work / "buckets"
    records = corpus.write_records(root / "bench" / str(count), ctx.work / "pictures" / SIZE, count)
    server = subprocess.Popen([sys.executable, Path(__file__).with_name("server.py"), str(root), str(DELAY_MS)],
                              stdout=subprocess.PIPE, text=True, preexec_fn=measure.pin(-1))
    try:
        endpoint, key, secret = server.stdout.readline().split()
        env = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"}
        out = list(ctx.outputs.values())[-1] / "cache"
        uri = "s3://bench/%d/records.jsonl" % count
        for number in range(ctx.rounds):
            row = {"what": "remote", "round": number, "samples": count, "delay_ms": DELAY_MS}
            for name, source, extra in (("local", records, ()), ("s3", uri, ("--s3-endpoint", endpoint))):
                shutil.rmtree(out, ignore_errors=True)
                command = throughput.stoker_build(ctx, source, max_pixels, 1, out, extra)
                row[name] = measure.run(command, log=ctx.work / "build.log", env=env, cores=1)
            ctx.emit(row)
        shutil.rmtree(out, ignore_errors=True)
    finally:
        server.terminate()
        server.wait()


def table(rows):
    """Markdown: one line, CPU time beside wall time."""
    mine = [r for r in rows if r["what"] == "remote"]
    if not mine:
        return ["S3 was not measured."]
    share = measure.middle([r["s3"]["wall_s"] / r["local"]["wall_s"] - 1 for r in mine])
    cpu = measure.middle([r["s3"]["cpu_s"] / r["local"]["cpu_s"] - 1 for r in mine])
    return ["| from S3 with %d ms a GET | longer than local (floor %d %%) | more CPU time |" % (DELAY_MS, 100 * FLOOR_SHARE),
            "|---|---|---|", "| %d samples | %.1f %% | %.1f %% |" % (mine[0]["samples"], 100 * share, 100 * cpu)]
