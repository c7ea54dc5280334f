"""The tables of the peers: rates, places in an epoch, and what it costs to begin."""

from peers.start import COUNTS


def markdown(names, lines):
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|", *("| " + " | ".join(cells) + " |" for cells in lines)]


def faults(row, records):
    """What is wrong with an epoch, in words; nothing if it is right."""
    if "failed" in row:
        return "FAILS: %s" % " ".join(row["failed"])
    if "limit_s" in row:
        return "> %d s" % row["limit_s"]
    found = [(row["wrong"], "wrong"), (records - row["distinct"], "lost"), (row["samples"] - row["distinct"], "repeated")]
    return counted(found)


def counted(found):
    words = ["%d %s" % pair for pair in found if pair[0]]
    return "FAILS: " + ", ".join(words) if words else ""


class Notes(list):
    """Footnotes of a table."""

    def no(self, why):
        """The cell of what is not supported."""
        if why not in self:
            self.append(why)
        return "no [%d]" % (1 + self.index(why))


def gb_s(bytes_, wall_s, cpu_s):
    """A rate, and that of a CPU second in brackets."""
    return "%.2f (%.2f)" % (bytes_ / 1e9 / wall_s, bytes_ / 1e9 / max(cpu_s, 1e-9))


def rate(row, records, phase):
    """A cell of the first table."""
    broken = "failed" in row or "limit_s" in row
    wrong = faults(row, records) if broken or phase != "write" else ""
    return wrong or gb_s(row["bytes"], row["wall_s"], row["cpu_s"])


def rates(chosen, rows, limits, records):
    """GB a second, with what the machine can at most below."""
    phases = ["write", "sequential", "shuffled", "cold"]
    lines = []
    for name in chosen:
        # Stoker writes nothing here.
        cells = ["-" if name == "stoker" and phase == "write" else rate(rows[name, phase], records, phase) for phase in phases]
        lines.append([name, str(rows[name, "write"].get("version")), faults(rows[name, "verify"], records) or "yes", *cells])
    copy, write, read = ("none" if limits[what] is None else gb_s(*limits[what]) for what in ("copy", "write", "read"))
    lines.append(["*memcpy*", "", "", copy, copy, copy, ""])
    lines.append(["*O_DIRECT*", "", "", write, "", "", read])
    return markdown(["GB/s (GB a CPU second)", "version", "every byte right", "write", "sequential", "shuffled", "cold, shuffled"], lines)


def places(chosen, rows, records, notes):
    """First samples, resuming, shuffling and memory."""
    lines = []
    for name in chosen:
        shuffled, resumed = rows[name, "shuffled"], rows[name, "resume"]
        broken = "near" not in shuffled
        lines.append([name, first(rows[name, "first"]), "-" if broken else resume(resumed, notes),
                      milliseconds(resumed) if resumed.get("first_s") else "-", elastic(rows[name, "elastic"], records, notes),
                      *(["-"] * 3 if broken else ["%.0f %%" % (100 * shuffled["near"]), "%.0f %%" % (100 * shuffled["spread"]),
                                                  "%.2f GiB" % (shuffled["peak_bytes"] / 2**30)])])
    return markdown(["", "first sample", "resume at half", "first after it", "with 2 ranks, then 3", "within 64", "spread", "peak memory"], lines)


def resume(row, notes):
    if "failed" in row:
        return notes.no("not supported: raises `%s`" % " ".join(row["failed"]))
    if "limit_s" in row:
        return "> %d s" % row["limit_s"]
    if row["exact"]:
        return "exact"
    return counted([(row["lost"], "lost"), (row["repeated"], "repeated")]) or "FAILS: another order"


def elastic(row, records, notes):
    if "unsupported" in row:
        return notes.no("not supported: " + row["unsupported"])
    return faults(row, records) or "exact"


def milliseconds(row):
    return "%.0f ms" % (1000 * row["first_s"])


def first(row):
    """Until the first sample, which must be right."""
    if "first_s" not in row:
        return faults(row, 0)
    return "FAILS: wrong" if row["wrong"] else milliseconds(row)


def start(chosen, rows):
    """Time and memory until the first sample, for each size."""
    lines = []
    for name in chosen:
        cells = []
        for count in COUNTS:
            row = rows[name, count]
            cells.append(first(row))
            if "peak_bytes" in row and "first_s" in row:
                grown = max(row["peak_bytes"], row["after_bytes"]) - row["before_bytes"]
                cells[-1] += ", %.0f MiB" % (max(0, grown) / 2**20)
        lines.append([name, *cells])
    return markdown(["samples", *("10^%d" % (len(str(count)) - 1) for count in COUNTS)], lines)
