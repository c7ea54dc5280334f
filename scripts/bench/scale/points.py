"""What is measured: one factor at a time around the defaults, and a few crosses.

A point is a dict: the cache (sample_bytes, shard_bytes, megabytes) and how it is read. Points that several factors share are measured once.
"""

KIB, MIB = 1 << 10, 1 << 20

CACHE = ("sample_bytes", "shard_bytes", "megabytes")

# The defaults of `stoker build` and of the reader.
DEFAULT = {"sample_bytes": MIB, "shard_bytes": 512 * MIB, "megabytes": 2048, "cold": 0, "processes": 1, "backend": "pread",
           "verify": "first-read", "threads": 2, "prefetch_batches": 8, "prefetch_bytes": None}

# A batch is about as large whatever its samples are, so that samples alone vary.
BATCH_BYTES = 8 * MIB

SHARDS = [16 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB]
SAMPLES = [4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]
BUDGETS = [16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB]

# Samples of a cache: more of small ones would only take longer to make.
MOST_SAMPLES = 1 << 16


def point(**changed):
    """The default point but for what is given, with what follows from it."""
    made = {**DEFAULT, **changed}
    made["megabytes"] = min(made["megabytes"], MOST_SAMPLES * made["sample_bytes"] // MIB)
    made["batch"] = max(1, min(256, BATCH_BYTES // made["sample_bytes"]))
    return made


def sections(cores):
    """-> a list of (title, what a row is called by, points)."""
    threads = list(range(1, cores + 2))
    # Enough batches ahead that the bytes are what binds.
    budget = {"prefetch_batches": 1024}
    return [
        ("shard size", ["shard_bytes"], [point(shard_bytes=size) for size in SHARDS]),
        ("sample size", ["sample_bytes"], [point(sample_bytes=size) for size in SAMPLES]),
        ("batches ahead", ["prefetch_batches"], [point(prefetch_batches=number) for number in (0, 1, 2, 4, 8, 32)]),
        ("bytes ahead, batches without bound", ["prefetch_bytes"], [point(prefetch_bytes=size, **budget) for size in BUDGETS]),
        ("backend", ["backend"], [point(backend=name) for name in ("pread", "mmap", "direct")]),
        ("backend, cold", ["backend"], [point(backend=name, cold=1) for name in ("pread", "mmap", "direct")]),
        ("verify", ["verify"], [point(verify=name) for name in ("off", "first-read", "always")]),
        ("threads", ["threads"], [point(threads=number) for number in threads]),
        ("threads, cold", ["threads"], [point(threads=number, cold=1) for number in threads]),
        ("processes on one cache", ["processes"], [point(processes=number) for number in (1, 2, 3, 4)]),
        ("sample size x threads", ["sample_bytes", "threads"],
         [point(sample_bytes=size, threads=number) for size in (4 * KIB, 32 * KIB, 16 * MIB) for number in threads]),
        ("shard size x backend, cold", ["shard_bytes", "backend"],
         [point(shard_bytes=size, backend=name, cold=1) for size in (SHARDS[0], SHARDS[3], SHARDS[4]) for name in ("pread", "direct")]),
        ("bytes ahead x processes", ["prefetch_bytes", "processes"],
         [point(prefetch_bytes=size, processes=number, **budget) for size in (16 * MIB, 256 * MIB) for number in (1, 2, 4)]),
    ]


def distinct(all_sections):
    """Every point once, those of one cache after another."""
    found = []
    for _, _, points in all_sections:
        found += [one for one in points if one not in found]
    return sorted(found, key=lambda one: [one[name] for name in CACHE])


def shown(name, value):
    """The value of a factor for people."""
    if value is None:
        return "default"
    if name.endswith("_bytes"):
        return "%d MiB" % (value // MIB) if value >= MIB else "%d KiB" % (value // KIB)
    return str(value)


def label(names, one):
    """What a row is called."""
    said = ", ".join(shown(name, one[name]) for name in names)
    return said + (" (default)" if one == point() else "")
