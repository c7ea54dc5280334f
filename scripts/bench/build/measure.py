"""Start a program, wait for it, and say what it cost: wall and CPU seconds, peak memory, and memory over time.

Wall times mean something on a quiet machine only, so every result carries the share of the machine that others used.
"""

import os
import statistics
import subprocess
import threading
import time
from pathlib import Path

CORES = os.cpu_count() or 1
TICK = os.sysconf("SC_CLK_TCK")


def busy_seconds():
    """CPU seconds that the whole machine has worked so far, idle and waiting left out."""
    fields = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, soft, steal = fields
    return (user + nice + system + irq + soft + steal) / TICK


class Memory(threading.Thread):
    """Watches the memory of a process. (The kernel's own peak of a child counts what the parent had when it forked.)"""

    def __init__(self, pid, every_s=0.1):
        super().__init__(daemon=True)
        self.path, self.every_s = Path("/proc/%d/status" % pid), every_s
        self.peak, self.resident, self.ended = 0, [], threading.Event()

    def run(self):
        while not self.ended.wait(self.every_s):
            try:
                text = self.path.read_text()
            except OSError:
                return
            fields = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Vm"))
            if "VmRSS" in fields:
                self.peak = max(self.peak, int(fields["VmHWM"].split()[0]) * 1024)
                self.resident.append(int(fields["VmRSS"].split()[0]) * 1024)


def pin(cores):
    """What a child does to keep to the first `cores` cores: a program of one worker has helpers, which count as well.

    A negative number means so many of the last cores.
    """
    all_cores = sorted(os.sched_getaffinity(0))
    mine = all_cores[:cores] if cores > 0 else all_cores[cores:]
    return lambda: os.sched_setaffinity(0, mine)


def file_system(path):
    """The type of the file system below `path`: a figure for a disk is not one for memory."""
    path = Path(path).resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((m for m in mounts if path.is_relative_to(m[0])), key=lambda m: len(m[0]))[1]


def run(command, log, env=None, cores=CORES):
    """Run `command` on `cores` cores, its output to the file `log`.

    -> dict of wall_s, cpu_s, busy_share (of all cores), others_share, peak_rss_bytes, rss_growth_bytes and rss_tenths.
    """
    before, start = busy_seconds(), time.perf_counter()
    with open(log, "wb") as out:
        child = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.STDOUT, env=dict(os.environ, **(env or {})), preexec_fn=pin(cores))
        memory = Memory(child.pid)
        memory.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
    memory.ended.set()
    memory.join()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        tail = Path(log).read_text(errors="replace")[-2000:]
        raise SystemExit("`%s` ended with %d\n%s" % (" ".join(map(str, command)), child.returncode, tail))
    cpu = usage.ru_utime + usage.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "busy_share": cpu / wall / CORES,
            "others_share": max(0.0, (busy_seconds() - before - cpu) / wall / CORES),
            "peak_rss_bytes": memory.peak, "rss_growth_bytes": growth(memory.resident), "rss_tenths": tenths(memory.resident)}


def middle(values):
    """The median."""
    return statistics.median(values)


def growth(rss):
    """Median resident bytes of the last quarter less those of the second: near 0 when memory is flat."""
    quarter = len(rss) // 4
    if quarter == 0:
        return 0
    return int(middle(rss[-quarter:]) - middle(rss[quarter:2 * quarter]))


def tenths(rss):
    """Median resident bytes of each tenth of the run."""
    return [int(middle(rss[len(rss) * at // 10:len(rss) * (at + 1) // 10] or [0])) for at in range(10)]
