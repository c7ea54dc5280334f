"""Resident memory over a build: 100,000 chats with tiny pictures, and large pictures, with a large and a small budget.

No time is measured here, so other work on the machine does no harm.
"""

import shutil

import corpus
import measure

CHATS, PICTURES = 100_000, 1600
BUDGETS = {"2GiB": 2 << 30, "512MiB": 512 << 20}
FLOOR_OVER_BUDGET_BYTES = 300 << 20


def run(ctx):
    """Every set with every budget, each into an empty folder."""
    if ctx.stoker is None:
        return
    corpus.write_pictures(ctx.work / "pictures", ctx.wheels)
    large, tiny = ctx.work / "pictures" / "1024x768", ctx.work / "pictures" / "96x96"
    corpus.write_thumbnails(tiny, large)
    out = list(ctx.outputs.values())[-1] / "cache-memory"
    for name, pictures, count in (("chats", tiny, CHATS), ("pictures", large, PICTURES)):
        count = int(count * ctx.scale)
        records = corpus.write_records(ctx.work / ("records-memory-%s-%d" % (name, count)), pictures, count)
        for budget in BUDGETS:
            shutil.rmtree(out, ignore_errors=True)
            command = [ctx.stoker, "build", "--input", records, "--model", ctx.model, "--output", out, "--memory-budget", budget]
            row = measure.run(command, log=ctx.work / "memory.log")
            ctx.emit({"what": "memory", "set": name, "records": count, "budget": budget, **row})
    shutil.rmtree(out, ignore_errors=True)


def table(rows):
    """Markdown: peak against the budget, and the course of the run."""
    out = ["| records | budget | peak memory, MiB (floor) | MiB in each tenth of the run |", "|---|---|---|---|"]
    for r in (r for r in rows if r["what"] == "memory"):
        floor = (BUDGETS[r["budget"]] + FLOOR_OVER_BUDGET_BYTES) >> 20
        course = " ".join(str(value >> 20) for value in r["rss_tenths"])
        out.append("| %d %s | %s | %d (%d) | %s |" % (r["records"], r["set"], r["budget"], r["peak_rss_bytes"] >> 20, floor, course))
    return out
