"""The image steps one by one: resizing against torchvision, Pillow and Pillow-SIMD, equal bytes checked, and decoding."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from build import corpus, measure

BENCH = Path(__file__).resolve().parent.parent
# peer: the kernel of `bench_image` with the same bytes, the floor
PEERS = {"torchvision": ("torch", 1.0), "pillow": ("pillow13", 3.0), "pillow-simd": ("pillow12", None)}
# Where nothing is limited: that of the model.
MAX_PIXELS = 16_777_216


def program(command, **env):
    """The JSON object that `command` prints."""
    done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True,
                          env=dict(os.environ, **env))
    return json.loads(done.stdout)


def image_steps(bench, of, *out):
    """CPU ms a picture of decoding alone and of the steps after it, from the repository's own measuring program."""
    return program([bench.bench_image, of.max_pixels or MAX_PIXELS, of.pictures, *out])


def turn(bench, of):
    """All resize the same pictures, one after the other; ours leaves its results for the others to compare."""
    ours = bench.folder / "resized"
    shutil.rmtree(ours, ignore_errors=True)
    ours.mkdir(parents=True)
    row = {"stoker": image_steps(bench, of, ours)}
    for peer in PEERS:
        path = [BENCH]
        if peer == "pillow-simd":
            if not (bench.pillow_simd / "PIL").is_dir():
                continue
            path.insert(0, bench.pillow_simd)
        row[peer] = program([sys.executable, "-B", "-m", "build.peer_resize", peer.removesuffix("-simd"), of.pictures, of.max_pixels, ours],
                            PYTHONPATH=os.pathsep.join(map(str, path)))
    shutil.rmtree(ours)
    return row


def run(bench):
    """Sizes whose pictures are resized at all -> Markdown."""
    corpus.write_pictures(bench.work / "pictures", bench.work / "wheels")
    out = ["| pictures | against | version | stoker ms | its ms | times as fast | floor | equal bytes |", "|---|---|---|---|---|---|---|---|"]
    for size in bench.sizes:
        of = bench.set_of(size)
        if of.max_pixels is None:
            continue
        rows = [bench.measured({"what": "kernels", "size": size, "round": number, "simd": (bench.pillow_simd / "PIL").is_dir()},
                               lambda: turn(bench, of)) for number in range(bench.rounds)]
        for peer, (kernel, floor) in PEERS.items():
            if peer not in rows[0]:
                out.append("| %s | %s | does not install here | | | | | |" % (size, peer))
                continue
            ours = [row["stoker"]["resize_%s_ms" % kernel] for row in rows]
            theirs = [row[peer]["ms"] for row in rows]
            same, all_of = min(row[peer]["same"][kernel] for row in rows), rows[0][peer]["pictures"]
            # Pillow-SIMD does not promise Pillow's bytes.
            fails = "FAILS: " if same < all_of and floor else ""
            out.append("| %s | %s | %s | %.2f | %.2f | %.2f | %s | %s%d of %d |" % (
                size, peer, rows[0][peer]["version"], measure.middle(ours), measure.middle(theirs),
                measure.middle([their / our for our, their in zip(ours, theirs)]), "-" if floor is None else "%g" % floor,
                fails, same, all_of))
    return out
