"""One phase of one contender in a process of its own.

usage: python -m peers.phase SPEC, a JSON object; prints one. `write` makes the files; `verify` compares every byte of an epoch;
`sequential` and `shuffled` read an epoch from the page cache, `cold` one whose files the system has forgotten; `shuffled` saves its state
at half of the epoch, and `resume` goes on from it.
"""

import json
import os
import pickle
import resource
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path

from ladder.data import drop_pages, touch_pages
from peers.formats import FORMATS
from peers.samples import Samples, Sink, folder_bytes, near


def cpu_seconds():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def write(contender, spec, folder):
    samples = Samples(spec["cache"], spec["records"])
    Path(spec["hashes"]).write_text(json.dumps(samples.hashes), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cpu, start = cpu_seconds(), time.perf_counter()
    contender.write(samples, folder)
    wall = time.perf_counter() - start
    return {"wall_s": wall, "cpu_s": cpu_seconds() - cpu, "bytes": samples.bytes, "disk_bytes": folder_bytes(folder)}


def read(contender, spec, folder):
    phase = spec["phase"]
    hashes = json.loads(Path(spec["hashes"]).read_text(encoding="utf-8")) if phase == "verify" else None
    (drop_pages if phase == "cold" else touch_pages)(folder.resolve() / "cache" if spec["format"] == "stoker" else folder)
    sink, half = Sink(hashes), spec["records"] // 2 // 16 * 16
    start, first = time.perf_counter(), None
    contender.open(folder, shuffled=phase != "sequential")
    if phase == "resume":
        contender.load(pickle.loads((folder.parent / (folder.name + ".state")).read_bytes()))
    # Opening counts for the first sample, not for the rates.
    opened, cpu = time.perf_counter(), cpu_seconds()
    for ids, patches in contender.iterate():
        sink.take(ids, patches)
        first = first or time.perf_counter() - start
        if phase == "shuffled" and len(sink.order) == half:
            state = pickle.dumps(contender.save())
            (folder.parent / (folder.name + ".state")).write_bytes(state)
        if len(sink.order) > spec["records"]:
            break
    wall = time.perf_counter() - opened
    out = {"wall_s": wall, "cpu_s": cpu_seconds() - cpu, "bytes": sink.bytes, "first_s": first, "wrong": sink.wrong,
           "samples": len(sink.order), "distinct": len(set(sink.order)), "near": near(sink.order)}
    kept = folder.parent / (folder.name + ".order")
    if phase == "shuffled":
        kept.write_text(json.dumps(sink.order), encoding="utf-8")
    elif phase == "resume":
        rest = json.loads(kept.read_text(encoding="utf-8"))[half:]
        out.update(exact=sink.order == rest, lost=len(set(rest) - set(sink.order)), repeated=len(set(sink.order) - set(rest)))
    return out


def main():
    spec = json.loads(sys.argv[1])
    contender, folder = FORMATS[spec["format"]](), Path(spec["folder"])
    # Modules are loaded before the clock starts.
    __import__({"memmap": "numpy", "mosaic": "streaming", "hf": "datasets"}.get(spec["format"], spec["format"]))
    row = (write if spec["phase"] == "write" else read)(contender, spec, folder)
    row["version"] = "this tree" if spec["format"] == "stoker" else version(contender.package)
    print("\n" + json.dumps(row), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
