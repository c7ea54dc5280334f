"""Samples per second and core: `stoker build` against transformers 5 and 4, fast and slow, torchvision and LitData, same local files.

Contenders take turns in every round and the ratio is taken within a round, so that a slow minute of the machine hits
all of them. A run with one worker is kept on one core; of 1 and all cores the better counts. A peer's start-up is left out and all
but LitData write nothing; stoker's whole run is counted, from start to commit, with every byte written. Whoever makes other bytes than
transformers is shown as failing.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from build import corpus, measure, reference, stoker
from build.kernels import image_steps

BENCH = Path(__file__).resolve().parent.parent
# name: whether it runs in the environment of transformers 4, what `peer` calls it, whose pixels it makes
PEERS = {
    "transformers 5.23, fast": (False, "fast", "torchvision"),
    "transformers 5.23, slow": (False, "slow", "pillow 13"),
    "transformers 4.57, fast": (True, "fast", "torchvision"),
    "transformers 4.57, slow": (True, "slow", "pillow 12"),
    "torchvision alone": (False, "torchvision", "torchvision"),
}
LITDATA = "litdata optimize"
# The builds that make the same pixels.
STOKER = {
    "torchvision": (),
    "pillow 13": ("--profile", "pil_path"),
    "pillow 12": ("--profile", "pil_path", "--transformers", 4),
}
# Whose samples are the reference of each.
REFERENCES = {"torchvision": "transformers 5.23, fast", "pillow 13": "transformers 5.23, slow", "pillow 12": "transformers 4.57, slow"}
FLOORS = {  # size: times transformers 5, times transformers 4, both fast
    "1024x768": (3.0, 8.0), "1920x1080": (2.2, 7.0), "4000x3000": (1.7, 4.0),
}
FLOOR_BUSY = 0.95
# LitData holds its samples in memory and on disk.
LITDATA_RECORDS = 400


def peer_run(bench, name, of, workers, seconds):
    """`workers` peer processes at once; -> samples per second and core, by wall and by CPU time, and the first samples' hashes."""
    old, contender, _ = PEERS[name]
    go = bench.folder / "go"
    go.unlink(missing_ok=True)
    spec = {"model": str(bench.model), "records": str(of.records), "max_pixels": of.max_pixels, "contender": contender,
            "seconds": seconds, "checked": reference.CHECKED, "go": str(go)}
    log = bench.folder / "peer.log"
    with open(log, "wb") as errors:
        started = [subprocess.Popen([str(bench.python4 if old else sys.executable), "-B", "-m", "build.peer", json.dumps(spec)],
                                    stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=measure.pin(workers),
                                    env=dict(os.environ, PYTHONPATH=str(BENCH)))
                   for _ in range(workers)]
    for child in started:
        if child.stdout.readline().strip() != "ready":
            raise SystemExit("`%s` did not start\n%s" % (name, log.read_text(errors="replace")[-2000:]))
    busy = measure.busy_seconds()
    go.touch()
    rows = [json.loads(child.communicate()[0]) for child in started]
    cpu, wall = sum(r["cpu_s"] for r in rows), max(r["wall_s"] for r in rows)
    samples = sum(r["samples"] for r in rows)
    return {"version": rows[0]["version"], "tokens": rows[0]["tokens"], "text_tokens": rows[0]["text_tokens"], "samples": samples,
            "per_core_wall": sum(r["samples"] / r["wall_s"] for r in rows) / workers, "per_cpu_s": samples / max(cpu, 1e-9),
            "busy_share": cpu / max(wall, 1e-9) / measure.CORES, "digests": rows[0]["digests"],
            "wrong": sum(r["misshapen"] for r in rows),
            "others_share": max(0.0, (measure.busy_seconds() - busy - cpu) / max(wall, 1e-9) / measure.CORES)}


def litdata_run(bench, of, workers):
    """One `optimize` of the first records, into a folder of its own."""
    folder = bench.output / "litdata"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    count = min(of.count, LITDATA_RECORDS)
    spec = {"model": str(bench.model), "records": str(of.records), "max_pixels": of.max_pixels, "folder": str(folder),
            "samples": count, "workers": workers, "checked": reference.CHECKED}
    env = dict(os.environ, PYTHONPATH=str(BENCH), DATA_OPTIMIZER_CACHE_FOLDER=str(folder / "cache"), LITDATA_DISABLE_VERSION_CHECK="1",
               DATA_OPTIMIZER_DATA_CACHE_FOLDER=str(folder / "data"))
    log = bench.folder / "litdata.log"
    with open(log, "wb") as errors:
        done = subprocess.run([sys.executable, "-B", "-m", "build.litdata_optimize", json.dumps(spec)], stdout=subprocess.PIPE,
                              stderr=errors, text=True, env=env, preexec_fn=measure.pin(workers))
    shutil.rmtree(folder)
    if done.returncode != 0:
        raise SystemExit("litdata failed\n%s" % log.read_text(errors="replace")[-2000:])
    row = json.loads(done.stdout.splitlines()[-1])
    return {**row, "wrong": 0, "per_core_wall": row["samples"] / row["wall_s"] / workers, "per_cpu_s": row["samples"] / row["cpu_s"]}


def stoker_run(bench, of, pixels, threads):
    """One whole build into an empty folder; the cache is read and removed."""
    out = bench.output / "cache"
    row = stoker.run(bench, of.records, of.count, out, [*of.options, *STOKER[pixels], "--threads", threads], cores=threads)
    found = json.loads(subprocess.run(
        [sys.executable, "-B", "-m", "build.reference", str(out), str(reference.CHECKED), str(of.count)], check=True,
        stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONPATH="%s:%s" % (BENCH, bench.work / "python"))).stdout)
    shutil.rmtree(out)
    return {**row, "digests": found, "wrong": 0, "version": "this tree", "per_core_wall": of.count / row["wall_s"] / threads,
            "per_cpu_s": of.count / row["cpu_s"]}


def checked(row, wanted):
    """The row with the number of samples that are not what they should be, in place of their hashes."""
    found = row.pop("digests")
    return {**row, "checked": len(found), "wrong": row["wrong"] + reference.wrong(found, wanted)}


def best(rows):
    """The better of the runs with 1 and with more workers, by samples per core; a wrong one stands before all others."""
    return max(rows, key=lambda r: (r["wrong"] > 0, r["per_core_wall"]))


def run(bench):
    """All sizes -> Markdown."""
    corpus.write_pictures(bench.work / "pictures", bench.work / "wheels")
    # Steps of one size before the next: what is compared is measured together.
    return [line for size in bench.sizes for line in one_size(bench, size)]


def one_size(bench, size):
    of = bench.set_of(size)
    settings = {"size": size, "records": of.count}
    jobs = {name: (pixels, lambda workers, name=name: peer_run(bench, name, of, workers, bench.seconds))
            for name, (_, _, pixels) in PEERS.items()}
    jobs[LITDATA] = "torchvision", lambda workers: litdata_run(bench, of, workers)
    if bench.contender:
        jobs = {name: job for name, job in jobs.items() if bench.contender in name}
    made = {pixels for pixels, _ in jobs.values()}
    for pixels in (pixels for pixels in STOKER if pixels in made):
        jobs["stoker, " + pixels] = pixels, lambda workers, pixels=pixels: stoker_run(bench, of, pixels, workers)
    wanted = {pixels: bench.measured({"what": "reference", "pixels": pixels, **settings},
                                     lambda: peer_run(bench, name, of, 1, 0))["digests"]
              for pixels, name in REFERENCES.items() if pixels in made}
    rows = {name: [] for name in jobs}
    steps = []
    for number in range(bench.rounds):
        for name, (pixels, job) in jobs.items():
            identity = {"what": "throughput", "contender": name, "round": number, **settings}
            identity.update({"seconds": bench.seconds} if name in PEERS else {"output": bench.disk})
            both = [bench.measured({**identity, "workers": workers}, lambda: checked(job(workers), wanted[pixels]))
                    for workers in sorted({1, measure.CORES})]
            rows[name].append((best(both), both[-1]))
        steps.append(bench.measured({"what": "image steps", "round": number, **settings}, lambda: image_steps(bench, of)))
    return table(bench, size, jobs, rows, steps)


def table(bench, size, jobs, rows, steps):
    """Markdown: medians over rounds, ratios within rounds."""
    out = ["Pictures of %s, caches written to %s, medians of %d rounds:" % (size, bench.disk, bench.rounds), "",
           "| who | version | bytes equal those of | samples/s a core | samples a CPU second | stoker: times as fast (floor; bare decoding) | times a CPU second |"
           " all cores busy |", "|---|---|---|---|---|---|---|---|"]
    decoding = [1000 / step["decode_ms"] for step in steps]
    out.append("| libjpeg-turbo alone, the bound | | | | %.3g | | | |" % measure.middle(decoding))
    for name, (pixels, _) in jobs.items():
        best_rows = [row for row, _ in rows[name]]
        wrong = sum(row["wrong"] for row in best_rows)
        cells = [name, best_rows[0]["version"]]
        if wrong:
            out.append("| " + " | ".join([*cells, "FAILS: %d wrong" % wrong, *["-"] * 5]) + " |")
            continue
        cells += [REFERENCES[pixels].removeprefix("transformers "), middle(best_rows, "per_core_wall"), middle(best_rows, "per_cpu_s")]
        if name.startswith("stoker"):
            cells += ["", "", "%.0f %% (%.0f)" % (100 * measure.middle([row["busy_share"] for _, row in rows[name]]), 100 * FLOOR_BUSY)]
        else:
            ours = [row for row, _ in rows["stoker, " + pixels]]
            cells += [ratio(ours, best_rows, "per_core_wall", floor(name, size), decoding), ratio(ours, best_rows, "per_cpu_s"), ""]
        out.append("| " + " | ".join(cells) + " |")
    return out + [""]


def floor(name, size):
    """The goals, of the fast processors."""
    return {"transformers 5.23, fast": FLOORS[size][0], "transformers 4.57, fast": FLOORS[size][1]}.get(name)


def ratio(ours, theirs, key, wanted=None, decoding=None):
    """Times as fast, within rounds."""
    text = "%.2f" % measure.middle([our[key] / their[key] for our, their in zip(ours, theirs)])
    if decoding:
        bound = measure.middle([most / their[key] for most, their in zip(decoding, theirs)])
        text += " (%s; %.1f)" % ("-" if wanted is None else "%g" % wanted, bound)
    return text


def middle(rows, key):
    """The median with three digits."""
    return "%.3g" % measure.middle([row[key] for row in rows])
