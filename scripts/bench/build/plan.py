"""The plan of ten million records of 2 KB: time and memory of `stoker build --dry-run`."""

import shutil

import corpus
import measure

RECORDS = 10_000_000
LINE_BYTES = 2000
FLOOR_S, FLOOR_BYTES = 120, 2 << 30


def run(ctx):
    """One run of the whole file; the file (20 GB) is removed afterwards."""
    if ctx.stoker is None:
        return
    count = int(RECORDS * ctx.scale)
    if shutil.disk_usage(ctx.work).free < 1.5 * count * LINE_BYTES:
        raise SystemExit("the plan needs %d bytes of free disk; give a smaller --scale" % int(1.5 * count * LINE_BYTES))
    path = ctx.work / "plan" / "train.jsonl"
    path.parent.mkdir(exist_ok=True)
    corpus.write_plan_records(path, count, LINE_BYTES)
    try:
        # The pictures do not exist, and a plan does not need them.
        row = measure.run([ctx.stoker, "build", "--input", path, "--model", ctx.model, "--output", ctx.work / "plan" / "cache",
                           "--dry-run"], log=ctx.work / "plan.log")
    finally:
        path.unlink()
    ctx.emit({"what": "plan", "records": count, **row})


def table(rows):
    """Markdown: one line."""
    out = ["| plan | seconds (floor %d) | peak memory, MiB (floor %d) |" % (FLOOR_S, FLOOR_BYTES >> 20), "|---|---|---|"]
    for r in (r for r in rows if r["what"] == "plan"):
        out.append("| %d records of 2 KB | %.1f | %d |" % (r["records"], r["wall_s"], r["peak_rss_bytes"] >> 20))
    return out
