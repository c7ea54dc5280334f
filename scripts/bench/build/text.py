"""Building the text again over kept images: 100,000 records, another template, no picture read."""

import shutil

from build import corpus, stoker

RECORDS = 100_000
# Small targets keep the cache near 20 GB; decoding still costs what a 1024x768 picture costs.
MAX_PIXELS = 65_536
# Short answers, as in question-answering sets: about 40 tokens of text.
CHAT_CHARS = 180
FLOOR_RETEXT = 20


def other_template(bench):
    """A copy of the model folder whose template differs in one line of text."""
    folder = bench.folder / "model-retext"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bench.model, folder)
    path = folder / "chat_template.jinja"
    path.write_text("{{- '<|im_start|>system\\nAnswer briefly.<|im_end|>\\n' }}" + path.read_text())
    return folder


def turn(bench, count):
    """The build, and then the text again; the image files must be the same ones and the text another."""
    corpus.write_pictures(bench.work / "pictures", bench.work / "wheels")
    stoker.need_disk(bench, int(1.15 * count * MAX_PIXELS * 3))
    records = corpus.write_records(bench.folder / ("records-long-%d" % count), bench.work / "pictures" / "1024x768", count, CHAT_CHARS)
    out = bench.output / "cache-long"
    options = ["--max-pixels", MAX_PIXELS]
    first = stoker.run(bench, records, count, out, options)
    before = stoker.files(out, "images-")
    again = stoker.run(bench, records, count, out, options, model=other_template(bench), keep=True)
    if not before or stoker.files(out, "images-") != before:
        raise SystemExit("building the text again has touched the pictures")
    if again["tokens"] <= first["tokens"] or again["stages"]["decode"] > 0:
        raise SystemExit("not the text alone was built again: `%s`" % again)
    shutil.rmtree(out)
    return {"build": first, "retext": again}


def run(bench):
    """-> Markdown: both, and their ratio."""
    count = max(8, int(RECORDS * bench.scale))
    row = bench.measured({"what": "text", "records": count, "max_pixels": MAX_PIXELS, "output": bench.disk}, lambda: turn(bench, count))
    out = ["| %d records | seconds | CPU seconds | cores busy | peak memory, MiB |" % count, "|---|---|---|---|---|"]
    for name in ("build", "retext"):
        r = row[name]
        out.append("| %s | %.1f | %.1f | %.0f %% | %d |" % (name, r["wall_s"], r["cpu_s"], 100 * r["busy_share"], r["peak_rss_bytes"] >> 20))
    wall, cpu = (row["build"][key] / row["retext"][key] for key in ("wall_s", "cpu_s"))
    return out + ["", "The text alone was %.1f times as fast to build as all (floor %d), with %.1f times less CPU time." % (wall, FLOOR_RETEXT, cpu)]
