"""One build by Stoker as a row: what it cost, and what its summary says, which must account for every record."""

import json
import shutil
from pathlib import Path

from build import measure


def command(bench, records, out, options=(), model=None):
    """The arguments of one build."""
    return [bench.stoker, "build", "--json", "--input", records, "--model", model or bench.model, "--output", out, *options]


def run(bench, records, count, out, options=(), model=None, keep=False, env=None, cores=measure.CORES):
    """Builds into an empty folder, or with `keep` over what is there. Stops unless all `count` records became samples."""
    if not keep:
        shutil.rmtree(out, ignore_errors=True)
    row, said = summary(bench, command(bench, records, out, options, model), env, cores)
    if said["samples"] != count or said["rejected"]:
        raise SystemExit("%d of %d records became samples: `%s`" % (said["samples"], count, said["rejects"]))
    return {**row, "fingerprint": said["fingerprint"], "bytes": said["bytes"], "tokens": said["tokens"], "stages": said["cpu_seconds"]}


def summary(bench, arguments, env=None, cores=measure.CORES):
    """-> what it cost, and the JSON object that it printed last."""
    log = bench.folder / "build.log"
    row = measure.run(arguments, log=log, env=env, cores=cores)
    return row, json.loads(log.read_text(errors="replace").splitlines()[-1])


def files(out, below):
    """Name, inode, size and time of the files in a cache's folders that begin with `below`: they tell whether one was touched."""
    found = (path for path in Path(out).rglob("*") if path.is_file() and path.relative_to(out).parts[0].startswith(below))
    return sorted((str(path), path.stat().st_ino, path.stat().st_size, path.stat().st_mtime_ns) for path in found)


def need_disk(bench, needed):
    """Stops where the output's disk has less free than that."""
    free = shutil.disk_usage(bench.output).free
    if free < needed:
        raise SystemExit("%d bytes of free disk are needed below `%s`, of which %d are there; give a smaller --scale" % (
            needed, bench.output, free))
