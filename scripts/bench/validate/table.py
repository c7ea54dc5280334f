"""The tables of `validate`: what was foretold, what was measured, how far off it is, and how much the runs vary."""

import statistics

from results import several
from validate.runs import LATENCY_MS, cycle

GOAL = 0.20


def spread(values):
    """The largest less the smallest, as a share of the median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle > 1e-4 else 0.0


def error(said, values):
    """How far off the median, as a share of it."""
    found = statistics.median(values)
    return (said - found) / found if found > 1e-4 else 0.0


def table(calibration, out):
    """Markdown."""
    serial = calibration["serial"][0]
    return ["Constants from %g ms, batches of %d, steps of %.2f s:" % (LATENCY_MS, serial["batch"], serial["step_s"]), "",
            *constants(calibration), "", *foretold(out), "", *far(out)]


def constants(calibration):
    """The runs that constants are taken from."""
    lines = ["| rung | runs | waiting | seconds a step |", "|---|---|---|---|"]
    for rung, rows in calibration.items():
        lines.append("| %s | %d | %s | %s |" % (rung, len(rows), several([100 * r["wait_ratio"] for r in rows], "%.1f %%"),
                                              several([cycle(r) for r in rows], "%.3f")))
    return lines


def foretold(out):
    """The runs that were foretold."""
    lines = ["| rung | latency | batch | readers | runs | waiting, foretold | measured | error | seconds a step, foretold | measured | error |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in out:
        readers = "%d x %d" % (r["workers"], r["readers"]) if r["workers"] else str(r["readers"])
        ratios = [100 * ratio for ratio in r["measured_ratios"]]
        lines.append("| %s | %g ms | %d | %s | %d | %.1f %% | %s | %+.0f %% | %.3f | %s | %+.0f %% |" % (
            r["rung"], r["latency_ms"], r["batch"], readers, len(ratios), 100 * r["foretold_ratio"], several(ratios, "%.1f %%"),
            100 * error(r["foretold_ratio"], r["measured_ratios"]), r["foretold_s"], several(r["measured_s"], "%.3f"),
            100 * error(r["foretold_s"], r["measured_s"])))
    return lines


def far(out):
    """How many are foretold within the goal, and how many can be held against it at all."""
    def within(row):
        seconds = abs(error(row["foretold_s"], row["measured_s"])) <= GOAL
        return seconds, seconds and abs(error(row["foretold_ratio"], row["measured_ratios"])) <= GOAL

    seconds, both = (sum(column) for column in zip(*map(within, out))) if out else (0, 0)
    steady = [r for r in out if spread(r["measured_ratios"]) <= GOAL]
    lines = ["Waiting and seconds a step within %.0f %% of the median: %d of %d; seconds a step alone: %d." % (
        100 * GOAL, both, len(out), seconds),
        "Without those whose own runs differ by more than %.0f %%: %d of %d." % (
        100 * GOAL, sum(within(r)[1] for r in steady), len(steady))]
    for r in out:
        if r not in steady:
            inside = min(r["measured_ratios"]) <= r["foretold_ratio"] <= max(r["measured_ratios"])
            lines.append("- the waiting of %s at %g ms, batch %d, varies by %.0f %% from run to run; what was foretold lies %s its runs" % (
                r["rung"], r["latency_ms"], r["batch"], 100 * spread(r["measured_ratios"]), "among" if inside else "outside"))
    return lines
