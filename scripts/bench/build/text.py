"""Long builds: memory over 100,000 records and over a 20 GB record file, and building the text again over kept images."""

import shutil

import corpus
import measure

RECORDS = 100_000
# Small targets keep the cache near 20 GB; decoding still costs what a 1024x768 picture costs.
MAX_PIXELS = 65_536
# Short answers, as in question-answering sets: about 40 tokens of text.
CHAT_CHARS = 180
LONG_BYTES, LONG_LINE_BYTES = 20_000_000_000, 200_000
MEMORY_BUDGET_BYTES = 2 << 30
FLOOR_OVER_BUDGET_BYTES, FLOOR_RETEXT = 300 << 20, 20


def other_template(ctx):
    """A copy of the model folder whose template differs in one line of text."""
    folder = ctx.work / "model-retext"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ctx.model, folder)
    path = folder / "chat_template.jinja"
    path.write_text("{{- '<|im_start|>system\\nAnswer briefly.<|im_end|>\\n' }}" + path.read_text())
    return folder


def build(ctx, name, records, model, out, extra=()):
    """One build."""
    command = [ctx.stoker, "build", "--input", records, "--model", model, "--output", out, "--memory-budget", "2GiB", *extra]
    return {"what": name, **measure.run(command, log=ctx.work / (name.replace(" ", "-") + ".log"))}


def run(ctx):
    """Build, build again with another template, then the long file."""
    if ctx.stoker is None:
        return
    corpus.write_pictures(ctx.work / "pictures", ctx.wheels)
    count = int(RECORDS * ctx.scale)
    if shutil.disk_usage(ctx.work).free < 1.3 * (count * MAX_PIXELS * 3 + LONG_BYTES * ctx.scale):
        raise SystemExit("not enough free disk for %d records; give a smaller --scale" % count)
    records = corpus.write_records(ctx.work / ("records-long-%d" % count), ctx.work / "pictures" / "1024x768", count, CHAT_CHARS)
    out = ctx.work / "cache-long"
    shutil.rmtree(out, ignore_errors=True)
    limit = ["--max-pixels", MAX_PIXELS]
    first = build(ctx, "build", records, ctx.model, out, limit)
    first["records"] = count
    ctx.emit(first)
    again = build(ctx, "retext", records, other_template(ctx), out, limit)
    again["records"] = count
    ctx.emit(again)
    shutil.rmtree(out)

    path = corpus.write_padded_records(ctx.work / "padded.jsonl", int(LONG_BYTES * ctx.scale), LONG_LINE_BYTES)
    try:
        ctx.emit(build(ctx, "long file", path, ctx.model, out))
    finally:
        path.unlink()
        shutil.rmtree(out, ignore_errors=True)


def table(rows):
    """Markdown: memory, and the ratio of build to retext."""
    limit = (MEMORY_BUDGET_BYTES + FLOOR_OVER_BUDGET_BYTES) >> 20
    out = ["| long run | seconds | cores busy | peak memory, MiB (floor %d) | growth, MiB |" % limit, "|---|---|---|---|---|"]
    found = {r["what"]: r for r in rows if r["what"] in ("build", "retext", "long file")}
    for name, r in found.items():
        out.append("| %s | %.1f | %.0f %% | %d | %d |" % (name, r["wall_s"], 100 * r["busy_share"],
                                                        r["peak_rss_bytes"] >> 20, r["rss_growth_bytes"] >> 20))
    if {"build", "retext"} <= found.keys():
        ratio = found["build"]["wall_s"] / found["retext"]["wall_s"]
        out += ["", "Building only the text again was %.1f times as fast as the build (floor %d)." % (ratio, FLOOR_RETEXT)]
    return out
