"""One phase of one contender in a process of its own.

usage: python -m peers.phase SPEC, a JSON object; prints one. `write` makes the files; `verify` compares every byte of an epoch;
`sequential` and `shuffled` read an epoch from the page cache, `cold` one whose files the system has forgotten; `shuffled` saves its state
at half of the epoch, and `resume` goes on from it. `first` and `start` open and take one sample, `start` of a set of tiny ones, which `make`
makes.
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
from ladder.memory import anonymous
from peers import formats
from peers.samples import Samples, Sink, folder_bytes, shuffled, tiny

# Samples of one shard of tiny ones. Larger sets name that shard more often.
UNIT = 10_000


def cpu_seconds():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def empty(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def hashes(spec):
    return json.loads(Path(spec["hashes"]).read_text(encoding="utf-8"))


def write(contender, spec, folder):
    samples = Samples(spec["cache"], spec["records"])
    Path(spec["hashes"]).write_text(json.dumps(samples.hashes), encoding="utf-8")
    empty(folder)
    cpu, start = cpu_seconds(), time.perf_counter()
    contender.write(samples, folder)
    wall = time.perf_counter() - start
    return {"wall_s": wall, "cpu_s": cpu_seconds() - cpu, "bytes": samples.bytes, "disk_bytes": folder_bytes(folder)}


def read(contender, spec, folder):
    phase = spec["phase"]
    (drop_pages if phase == "cold" else touch_pages)(data_folder(spec, folder))
    sink, half = Sink(hashes(spec).__getitem__ if phase == "verify" else None), spec["records"] // 2 // 16 * 16
    start, first = time.perf_counter(), None
    contender.open(folder, shuffled=phase != "sequential")
    if phase == "resume":
        contender.load(pickle.loads((folder / "epoch.state").read_bytes()))
    # Opening counts for the first sample, not for the rates.
    opened, cpu = time.perf_counter(), cpu_seconds()
    for ids, patches in contender.iterate():
        sink.take(ids, patches)
        first = first or time.perf_counter() - start
        if phase == "shuffled" and len(sink.order) == half:
            state = pickle.dumps(contender.save())
            (folder / "epoch.state").write_bytes(state)
        if len(sink.order) > spec["records"]:
            break
    wall = time.perf_counter() - opened
    out = {"wall_s": wall, "cpu_s": cpu_seconds() - cpu, "bytes": sink.bytes, "first_s": first, "wrong": sink.wrong,
           "samples": len(sink.order), "distinct": len(set(sink.order))}
    kept = folder / "epoch.order"
    if phase == "shuffled":
        kept.write_text(json.dumps(sink.order), encoding="utf-8")
        out.update(shuffled(sink.order))
    elif phase == "resume":
        rest = json.loads(kept.read_text(encoding="utf-8"))[half:]
        out.update(exact=sink.order == rest, lost=len(set(rest) - set(sink.order)), repeated=len(set(sink.order) - set(rest)))
    return out


def data_folder(spec, folder):
    """Where the files of the real samples lie."""
    return folder.resolve() / "cache" if spec["format"] == "stoker" else folder


def first(contender, spec, folder):
    if spec["phase"] == "first":
        touch_pages(data_folder(spec, folder))
        digest_of = hashes(spec).__getitem__
    else:
        # What `make` has written is in the page cache still.
        def digest_of(number):
            return Samples.digest(*contender.tiny(number))
    sink, before, start = Sink(digest_of), anonymous(os.getpid()), time.perf_counter()
    contender.open(folder, shuffled=True)
    opened = time.perf_counter() - start
    ids, patches = next(contender.iterate())
    taken = time.perf_counter() - start
    sink.take(ids, patches)
    return {"open_s": opened, "first_s": taken, "wrong": sink.wrong, "before_bytes": before, "after_bytes": anonymous(os.getpid())}


def make(contender, spec, folder):
    start, unit = time.perf_counter(), folder / str(UNIT)
    for count in spec["counts"]:
        empty(folder / str(count))
        if count == UNIT:
            contender.write([tiny(number) for number in range(UNIT)], unit)
        else:
            contender.repeat(unit, folder / str(count), count // UNIT)
    return {"wall_s": time.perf_counter() - start}


PHASES = {"write": write, "verify": read, "sequential": read, "shuffled": read, "resume": read, "cold": read, "first": first,
          "start": first, "make": make}


def main():
    spec = json.loads(sys.argv[1])
    # Modules are loaded before the clock starts.
    contender = formats.contender(spec["format"])
    row = PHASES[spec["phase"]](contender, spec, Path(spec["folder"]))
    row["version"] = version(contender.package) if contender.package else "this tree"
    print("\n" + json.dumps(row), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
