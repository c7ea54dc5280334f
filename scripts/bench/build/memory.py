"""Resident memory over long builds: 100,000 chats with tiny pictures, large pictures, and a file of 20 GB of records.

No time is measured here, so other work on the machine does no harm.
"""

import shutil

from build import corpus, stoker

CHATS, PICTURES = 100_000, 1600
LONG_BYTES, LONG_LINE_BYTES = 20_000_000_000, 200_000
BUDGETS = {"2GiB": 2 << 30, "512MiB": 512 << 20}
FLOOR_OVER_BUDGET_BYTES = 300 << 20
# What the smallest picture, of 65,536 pixels, takes in a cache, with its text.
TINY_BYTES = 210_000


def chats(bench, count):
    """Tiny pictures."""
    tiny = bench.work / "pictures" / "96x96"
    corpus.write_thumbnails(tiny, bench.work / "pictures" / "1024x768")
    stoker.need_disk(bench, count * TINY_BYTES)
    return corpus.write_records(bench.folder / ("records-chats-%d" % count), tiny, count)


def pictures(bench, count):
    """Large ones."""
    stoker.need_disk(bench, count * 2_500_000)
    return corpus.write_records(bench.folder / ("records-pictures-%d" % count), bench.work / "pictures" / "1024x768", count)


def long_file(bench, count):
    """Records that are long to read and quick to tokenise."""
    path = bench.output / "padded.jsonl"
    if not path.exists():
        stoker.need_disk(bench, int(1.1 * count * LONG_LINE_BYTES))
    return corpus.write_padded_records(path, count * LONG_LINE_BYTES, LONG_LINE_BYTES)


SETS = {"chats": (chats, CHATS), "pictures": (pictures, PICTURES), "records of 200 KB": (long_file, LONG_BYTES // LONG_LINE_BYTES)}


def turn(bench, name, count, budget):
    """One build into an empty folder."""
    out = bench.output / "cache-memory"
    row = stoker.run(bench, SETS[name][0](bench, count), count, out, ["--memory-budget", budget])
    shutil.rmtree(out)
    return row


def run(bench):
    """Every set with every budget -> Markdown: peak against the budget, and the course of the run."""
    corpus.write_pictures(bench.work / "pictures", bench.work / "wheels")
    out = ["| records | budget | peak memory, MiB (floor) | MiB in each tenth of the run |", "|---|---|---|---|"]
    try:
        for name, (_, full) in SETS.items():
            count = max(8, int(full * bench.scale))
            for budget, size in BUDGETS.items():
                row = bench.measured({"what": "memory", "set": name, "records": count, "budget": budget},
                                     lambda: turn(bench, name, count, budget))
                course = " ".join(str(value >> 20) for value in row["rss_tenths"])
                out.append("| %d %s | %s | %d (%d) | %s |" % (
                    count, name, budget, row["peak_rss_bytes"] >> 20, (size + FLOOR_OVER_BUDGET_BYTES) >> 20, course))
    finally:
        (bench.output / "padded.jsonl").unlink(missing_ok=True)
    return out
