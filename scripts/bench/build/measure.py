"""Start a program, wait for it, and say what it cost: wall and CPU seconds, peak memory, and memory over time.

Wall times mean something on a quiet machine only, so every result carries the share of the machine that others used.
"""

import os
import statistics
import subprocess
import time
from pathlib import Path

CORES = os.cpu_count() or 1
TICK = os.sysconf("SC_CLK_TCK")


def busy_seconds():
    """CPU seconds that the whole machine has worked so far, idle and waiting left out."""
    fields = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, soft, steal = fields
    return (user + nice + system + irq + soft + steal) / TICK


def resident_bytes(pid):
    """Resident memory of a live process, or None when it is gone."""
    try:
        for line in Path("/proc/%d/status" % pid).read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def run(command, ok=(0,), sample_s=None, log=None, env=None):
    """Run `command`; -> dict of wall_s, cpu_s, busy_share, others_share, peak_rss_bytes and, if sampled, rss_bytes."""
    before, start = busy_seconds(), time.perf_counter()
    with open(log or os.devnull, "wb") as out:
        child = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.STDOUT, env=dict(os.environ, **(env or {})))
        trace = []
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG if sample_s else 0)
            if pid:
                break
            trace.append(resident_bytes(child.pid))
            time.sleep(sample_s)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if child.returncode not in ok:
        tail = Path(log).read_text(errors="replace")[-2000:] if log else ""
        raise SystemExit("`%s` ended with %d\n%s" % (" ".join(map(str, command)), child.returncode, tail))
    cpu = usage.ru_utime + usage.ru_stime
    out = {"wall_s": wall, "cpu_s": cpu, "busy_share": cpu / wall / CORES, "exit": child.returncode,
           "others_share": max(0.0, (busy_seconds() - before - cpu) / wall / CORES),
           "peak_rss_bytes": usage.ru_maxrss * 1024}
    if sample_s:
        out["rss_bytes"] = [b for b in trace if b]
    return out


def middle(values):
    """The median."""
    return statistics.median(values)


def growth(rss):
    """Median resident bytes of the last quarter less those of the second: near 0 when memory is flat."""
    quarter = len(rss) // 4
    if quarter == 0:
        return 0
    return int(middle(rss[-quarter:]) - middle(rss[quarter:2 * quarter]))
