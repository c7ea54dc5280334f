"""A build from S3 whose every GET takes 30 ms longer, against the same files on a local disk.

The build keeps to one core and the server to another, so that the server's own work does not count.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from build import corpus, measure, stoker

DELAY_MS = 30
SIZE = "1920x1080"
FLOOR_SHARE = 0.10


def turn(bench, count):
    """Local, then S3; both must make the same cache. The first line of the server names its endpoint and its two keys."""
    pictures, _, options = bench.pictures_of(SIZE)
    # The server shows the folders below its root as buckets.
    root = bench.folder / "buckets"
    records = corpus.write_records(root / "bench" / str(count), pictures, count)
    server = subprocess.Popen([sys.executable, "-B", Path(__file__).with_name("server.py"), str(root), str(DELAY_MS)],
                              stdout=subprocess.PIPE, text=True, preexec_fn=measure.pin(-1))
    try:
        endpoint, key, secret = server.stdout.readline().split()
        env = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"}
        out, row = bench.output / "cache", {}
        for name, source, extra in (("local", records, ()), ("s3", "s3://bench/%d/records.jsonl" % count, ("--s3-endpoint", endpoint))):
            row[name] = stoker.run(bench, source, count, out, [*options, "--threads", 1, *extra], env=env, cores=1)
        shutil.rmtree(out)
    finally:
        server.terminate()
        server.wait()
    if row["s3"]["fingerprint"] != row["local"]["fingerprint"]:
        raise SystemExit("the cache from S3 is another than that from local files")
    return row


def run(bench):
    """Rounds of both -> Markdown: one line, CPU time beside wall time."""
    corpus.write_pictures(bench.work / "pictures", bench.work / "wheels")
    count = bench.count_of(SIZE)
    settings = {"what": "remote", "records": count, "delay_ms": DELAY_MS, "output": bench.disk}
    rows = [bench.measured({**settings, "round": number}, lambda: turn(bench, count)) for number in range(bench.rounds)]
    share, cpu = ([r["s3"][key] / r["local"][key] - 1 for r in rows] for key in ("wall_s", "cpu_s"))
    return ["| from S3 with %d ms a GET | longer than local (floor %d %%) | in single rounds | more CPU time |" % (DELAY_MS, 100 * FLOOR_SHARE),
            "|---|---|---|---|", "| %d pictures of %s, %d rounds | %.1f %% | %.1f to %.1f %% | %.1f %% |" % (
                count, SIZE, len(rows), 100 * measure.middle(share), 100 * min(share), 100 * max(share), 100 * measure.middle(cpu))]
