"""The plan of ten million records of 2 KB: time and memory of `stoker build --dry-run`."""

from build import corpus, stoker

RECORDS = 10_000_000
LINE_BYTES = 2000
FLOOR_S, FLOOR_BYTES = 120, 2 << 30


def turn(bench, count):
    """One run over the whole file; the file (20 GB) is removed afterwards. The pictures do not exist: a plan does not need them."""
    folder = bench.output / "plan"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.jsonl"
    stoker.need_disk(bench, int(1.1 * count * LINE_BYTES))
    try:
        corpus.write_plan_records(path, count, LINE_BYTES)
        row, said = stoker.summary(bench, [*stoker.command(bench, path, folder / "cache"), "--dry-run"])
    finally:
        path.unlink(missing_ok=True)
    if said["records"] != count or said["images"] != count or said["faulty_records"]:
        raise SystemExit("the plan is not of %d records with a picture each: `%s`" % (count, said))
    return row


def run(bench):
    """-> Markdown: one line."""
    count = int(RECORDS * bench.scale)
    row = bench.measured({"what": "plan", "records": count, "output": bench.disk}, lambda: turn(bench, count))
    return ["| plan | seconds (floor %d) | CPU seconds | peak memory, MiB (floor %d) |" % (FLOOR_S, FLOOR_BYTES >> 20), "|---|---|---|---|",
            "| %d records of 2 KB | %.1f | %.1f | %d |" % (count, row["wall_s"], row["cpu_s"], row["peak_rss_bytes"] >> 20)]
