"""How many instructions a command takes, counted by valgrind.

The same on every machine of an architecture: valgrind shows programs a CPU of its own (AVX2 at most), so neither the machine's
load nor its newer instructions matter. What instructions do not tell is time in memory; that is what the ratios are for.
"""

import os
import re
import subprocess

TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def environment(ctx):
    """Nothing of the caller's, whose variables a program may read; one thread wherever a library would start more."""
    return {"PATH": os.environ["PATH"], "HOME": str(ctx.work), "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ctx.bench), str(ctx.work / "python")])}


def once(ctx, command, profile):
    """Runs a command under valgrind -> its instructions, and what it printed."""
    log = profile.with_suffix(".log")
    with open(log, "wb") as errors:
        done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=%s" % profile, *map(str, command)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(ctx))
    if done.returncode != 0:
        raise SystemExit("error: `%s` failed under valgrind\n%s" % (" ".join(map(str, command)), log.read_text(errors="replace")[-2000:]))
    return int(TOTAL.search(profile.read_text(errors="replace")).group(1)), done.stdout


def profile_of(ctx, name):
    """Where the last profile of a case lies."""
    return ctx.work / ("%s.callgrind" % name.replace(" ", "-"))
