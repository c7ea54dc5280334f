"""Watches the memory of a process and all below it: anonymous memory of each, and shared memory once."""

import threading
from pathlib import Path


class Memory(threading.Thread):
    """`peak` is the most that was seen of `pid` and all below it together, in bytes."""

    def __init__(self, pid, every_s=0.2):
        super().__init__(daemon=True)
        self.pid, self.every_s, self.peak, self.ended = pid, every_s, 0, threading.Event()

    def run(self):
        before = shared()
        while not self.ended.wait(self.every_s):
            self.peak = max(self.peak, sum(map(anonymous, family(self.pid))) + max(0, shared() - before))


def family(pid):
    """The process, its children, and theirs."""
    try:
        found = [children.read_text().split() for children in Path("/proc/%d/task" % pid).glob("*/children")]
    except OSError:
        found = []
    return [pid] + [below for children in found for child in children for below in family(int(child))]


def field(path, name):
    """A field of a /proc file in kB, as bytes; 0 if it is gone."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), 0)


def anonymous(pid):
    """What a process has that no file holds."""
    return field("/proc/%d/status" % pid, "RssAnon")


def shared():
    """Shared memory of the whole machine: it may be in no process, and in several."""
    return field("/proc/meminfo", "Shmem")
