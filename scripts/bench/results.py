"""Results of one benchmark: JSON lines that only grow, and the machine that they were taken on."""

import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

from build import measure


class Results:
    """The file results.jsonl in a folder. Rows are told apart by what they were measured with."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "results.jsonl"

    def add(self, row):
        """Write one row down at once, with the time and the load of the machine."""
        row = dict(row, at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), load=os.getloadavg()[0])
        with open(self.path, "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        return row

    def latest(self, **fields):
        """The last row that holds these fields, or None."""
        found = None
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                if all(row.get(name) == value for name, value in fields.items()):
                    found = row
        return found

    def write(self, name, text):
        """A table or a picture beside the rows."""
        (self.folder / name).write_text(text, encoding="utf-8")


def machine():
    """What the numbers depend on, without names."""
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return "%s, %s: %d cores, %d GiB, load %.1f at the start, commit %s" % (
        time.strftime("%Y-%m-%d"), model, measure.CORES, memory, os.getloadavg()[0], head)


def several(values, form):
    """The median, and from where to where the values lie."""
    text = form % statistics.median(values)
    return text if len(values) == 1 else "%s (%s to %s)" % (text, form % min(values), form % max(values))
