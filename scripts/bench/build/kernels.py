"""The image steps one by one: resizing against torchvision and Pillow, and decoding, which bounds everything."""

import json
import subprocess
from pathlib import Path

import corpus
import measure

FLOORS = {"torchvision": 1.0, "pillow": 3.0}


def program(command):
    """The JSON object that `command` prints."""
    done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)


def run(ctx):
    """Both sides take turns over the same files."""
    corpus.write_pictures(ctx.work / "pictures", ctx.wheels)
    for size, (_, _, _, _, max_pixels) in corpus.SIZES.items():
        if max_pixels is None or (ctx.sizes and size not in ctx.sizes):
            continue
        folder = ctx.work / "pictures" / size
        for number in range(ctx.rounds):
            row = {"what": "kernels", "size": size, "round": number}
            if ctx.has_oracle("hf5"):
                row["peer"] = program([ctx.oracles / "hf5" / "bin" / "python", Path(__file__).with_name("peer_resize.py"),
                                       folder, max_pixels])
            if ctx.bench_image is not None:
                row["stoker"] = program([ctx.bench_image, max_pixels, folder])
            ctx.emit(row)


def table(rows):
    """Markdown: CPU ms a picture and ratios within rounds."""
    out = ["| images | kernel | stoker ms | peer ms | times as fast | floor |", "|---|---|---|---|---|---|"]
    for size in corpus.SIZES:
        mine = [r for r in rows if r["what"] == "kernels" and r["size"] == size and "peer" in r]
        for peer, key in (("torchvision", "resize_torch_ms"), ("pillow", "resize_pillow_ms")) if mine else ():
            theirs = measure.middle([r["peer"][peer + "_ms"] for r in mine])
            both = [r for r in mine if "stoker" in r]
            ours = "%.1f" % measure.middle([r["stoker"][key] for r in both]) if both else "-"
            ratio = "%.2f" % measure.middle([r["peer"][peer + "_ms"] / r["stoker"][key] for r in both]) if both else "-"
            out.append("| %s | %s | %s | %.1f | %s | %g |" % (size, peer, ours, theirs, ratio, FLOORS[peer]))
    return out
