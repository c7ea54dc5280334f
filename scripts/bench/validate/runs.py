"""What is measured for `validate`, how often, and what was measured before.

Rungs whose cores are busy vary from run to run, those that wait for a server hardly do. So after the first round the busy ones are
measured again, one repeat of each after another, as long as there is time.
"""

import statistics
import sys
import time
from typing import NamedTuple, Optional

from ladder.data import Server, touch_pages
from ladder.run import IDENTITY, process, spec_of

LATENCY_MS, STEPS, SERIAL_STEPS = 30, 4, 3
# Longer latencies bound a rung, whatever its cores do.
BUSY_MS = 30
# Of Stoker's rows: its buffers are made in the first epoch, which takes longer than a step; then the others are measured.
EPOCHS, SETTLED = 7, 1
CALIBRATED = ("serial", "threads", "async", "threads + queue", "async + queue", "workers, references", "stoker, warm")
# Whose threads or tasks fill a queue.
BASES = {"threads + queue": "threads", "async + queue": "async"}
UNHINDERED = "stoker, unhindered"
# A reader that is never late: what is left of the waiting is the call itself. Steps so many times as long as it needs.
RESTED, RESTED_SHARE = "stoker, rested", 3


class Setting(NamedTuple):
    """A run that is foretold. The step is a share of what Stoker's reader needs, or (None) as long for a sample as in the ladder."""

    rung: str
    latency_ms: float
    batch_share: float
    readers: Optional[int] = None
    workers: Optional[int] = None
    reader_share: Optional[float] = None


FORETOLD = [
    Setting("serial", 5, 1 / 2),
    Setting("serial", 100, 1 / 4),
    Setting("threads", 5, 1 / 2, 32),
    Setting("threads", 200, 1, 8),
    Setting("async", 5, 1 / 2, 64),
    Setting("async", 200, 1 / 2, 8),
    Setting("threads + queue", 200, 1, 8),
    Setting("threads + queue", 5, 1 / 2, 32),
    Setting("async + queue", 5, 1 / 2, 64),
    Setting("workers, references", 30, 1 / 2, 32, 1),
    Setting("workers, references", 200, 1, 4, 2),
    Setting("stoker, warm", 30, 1 / 2, reader_share=0.7),
    Setting("stoker, warm", 30, 1 / 4, reader_share=0.9),
]


def samples(a):
    """Records that the longest run takes, with the batch that is checked and those that are made ahead."""
    return (STEPS + 5) * a.batch


def middle(rows):
    """One row of the medians of some."""
    numbers = {name for name, value in rows[0].items() if isinstance(value, (int, float))}
    return {name: statistics.median(r[name] for r in rows) for name in numbers}


def cycle(row):
    """Seconds from one step to the next."""
    return row["batch"] / row["samples_s"]


class Runs:
    """The runs of the chosen rungs, new ones where they are not known."""

    def __init__(self, ctx, a, results, data, chosen):
        self.ctx, self.a, self.results, self.data, self.chosen = ctx, a, results, data, chosen
        # What the constants of the chosen rungs are taken from.
        self.needed = {"serial", *chosen, *(BASES[rung] for rung in chosen if rung in BASES)}
        self.started = time.monotonic()

    def all(self):
        """({rung: its runs where constants are taken}, [(setting, spec, its runs)])."""
        serial = self.spec("serial", LATENCY_MS, self.a.batch, steps=SERIAL_STEPS)
        calibration = {"serial": self.rounds([(serial, True)])[0]}
        step_s = calibration["serial"][0]["step_s"]
        unhindered = self.spec("stoker, warm", LATENCY_MS, self.a.batch, step_s=0.0, **self.epochs(self.a.batch))
        free = self.rounds([(unhindered, unhindered["rung"] in self.chosen)])[0]
        reader_s = 1 / middle(free)["samples_s"] if free else None
        rested = []
        if free:
            batch = self.a.batch // 4
            spec = self.spec("stoker, warm", LATENCY_MS, batch, step_s=RESTED_SHARE * batch * reader_s, **self.epochs(batch))
            rested = self.rounds([(spec, spec["rung"] in self.chosen)])[0]
        at_one = [self.spec(rung, LATENCY_MS, self.a.batch, steps=STEPS, step_s=step_s) for rung in CALIBRATED[1:]]
        settings = [given for given in FORETOLD if given.reader_share is None or reader_s]
        specs = [self.foretold(given, step_s, reader_s) for given in settings]
        found = self.rounds([(spec, spec["rung"] in self.needed) for spec in at_one]
                            + [(spec, spec["rung"] in self.chosen) for spec in specs])
        calibration.update((spec["rung"], rows) for spec, rows in zip(at_one, found) if rows)
        if free:
            calibration[UNHINDERED] = free
        if rested:
            calibration[RESTED] = rested
        return calibration, list(zip(settings, specs, found[len(at_one):]))

    def foretold(self, given, step_s, reader_s):
        """What is asked of a run that is foretold."""
        batch = int(self.a.batch * given.batch_share)
        # A step for fewer samples is as much shorter; Stoker gets one that its reader can hardly keep up with.
        step = step_s * given.batch_share
        length = {"steps": SERIAL_STEPS if given.rung == "serial" else STEPS * self.a.batch // batch}
        if given.reader_share is not None:
            step, length = given.reader_share * batch * reader_s, self.epochs(batch)
        return self.spec(given.rung, given.latency_ms, batch, readers=given.readers or self.a.threads, workers=given.workers,
                         step_s=step, **length)

    def spec(self, rung, latency_ms, batch, **given):
        return spec_of(self.ctx, self.a, rung, batch, latency_ms, **given)

    def epochs(self, batch):
        """Steps of all epochs, and of those that do not count."""
        steps = self.data.count // batch
        return {"steps": EPOCHS * steps, "settle": SETTLED * steps}

    def minutes(self):
        """Since it began."""
        return (time.monotonic() - self.started) / 60

    def rounds(self, specs):
        """The runs of each (spec, whether it is measured if it is not known)."""
        found = [[self.one(spec, 0, wanted)] for spec, wanted in specs]
        found = [[row for row in rows if row] for rows in found]
        again = [(spec, wanted, rows) for (spec, wanted), rows in zip(specs, found)
                 if rows and spec["rung"] != "serial" and spec["latency_ms"] <= BUSY_MS]
        # The shortest first: so the limit costs least.
        again.sort(key=lambda one: one[2][0]["run_s"])
        for turn in range(1, self.a.repeats):
            for spec, wanted, rows in again:
                in_time = self.minutes() + rows[0]["run_s"] / 60 <= self.a.minutes
                row = self.one(spec, turn, wanted and in_time)
                rows += [row] if row else []
        return found

    def one(self, spec, turn, wanted):
        """One run: an earlier one of the same settings, or a new one if it is wanted."""
        spec = dict(spec, turn=turn)
        identity = {"asked_step_s": spec["step_s"], **{name: spec[name] for name in IDENTITY}}
        row = self.results.latest(what="run", **identity)
        if self.a.fresh and spec["rung"] in self.chosen:
            row = None
        if row is not None or not wanted:
            return row
        print("measuring: %s, batch %d, %g ms, run %d" % (spec["rung"], spec["batch"], spec["latency_ms"], turn + 1), file=sys.stderr)
        if spec["rung"] == "stoker, warm":
            touch_pages(spec["cache"])
        began = time.monotonic()
        with Server(self.data, spec["latency_ms"]) as server:
            done = process(self.ctx, dict(spec, records=self.data.count, endpoint=server.endpoint))
        # When the training loop was busy is for the ladder's plot.
        del done["busy"]
        return self.results.add({"what": "run", **identity, **done, "run_s": time.monotonic() - began})
