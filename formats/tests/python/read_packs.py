#!/usr/bin/env python3
"""Reads the pack tables of a Stoker cache with pyarrow, from what formats/FORMAT.md says and nothing else.

usage: read_packs.py CACHE

Prints one JSON line for each pack, by table, and one for each sample that was left out. Checks sums against the sample
indexes, that every sample stands in one place, and hashes and checksums of blocks where the packages blake3 and xxhash are
installed. Any fault ends it with a message and exit code 1.
"""
import json
import pathlib
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from read_cache import check, read_arrow, read_file, read_sealed, xxhash

BLOCK = 65_536
SUMS = {"tokens": "n_tokens", "loss_tokens": "n_loss_tokens", "images": "n_images", "patches": "n_patches"}


def read_table(root, entry):
    path = root / "packs" / f"{entry['hash'][:16]}.parquet"
    data = read_file(path, entry["bytes"], entry["hash"])
    blocks = entry.get("blocks")
    if blocks is not None:
        check(len(blocks) == 16 * -(-len(data) // BLOCK), f"blocks of {path}")
        for at in range(0, len(data) if xxhash else 0, BLOCK):
            found = xxhash.xxh3_64_hexdigest(data[at:at + BLOCK])
            check(found == blocks[at // BLOCK * 16:at // BLOCK * 16 + 16], f"checksum of {path}, byte {at}")
    # On one thread: pyarrow's readers let go of their buffers after the read, and abort a Python that ends just then.
    table = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)
    check(table.num_rows == entry["rows"], f"{path} has {table.num_rows} of {entry['rows']} rows")
    return table.to_pylist()


def read_lengths(root, manifest):
    folder = root / f"text-{manifest['text_plan_id']}"
    for partition, files in enumerate(manifest["partitions"]):
        entry = files["samples"]["index"]
        data = read_file(folder / f"index/p{partition:04}.arrow", entry["bytes"], entry["hash"])
        yield read_arrow(data, "sample-index", partition, entry["rows"])


def read_packs(root, entry, lengths):
    options, name = entry["options"], entry["name"]
    left = {(partition, row) for partition, rows in enumerate(lengths) for row in range(len(rows))}
    check(entry["samples"] == [len(rows) for rows in lengths], f"samples of {name}")
    packs = [0] * len(lengths)
    for pack in read_table(root, entry["table"]):
        partition, rows = pack["partition"], pack["rows"]
        check(not any(packs[partition + 1:]), f"partitions of {name} are not in order")
        packs[partition] += 1
        for column, source in SUMS.items():
            found = sum(lengths[partition][row][source] for row in rows)
            check(found == pack[column], f"{column} of {name}: {pack}")
        alone = options["overlong"] == "alone" and len(rows) == 1
        for count, limit in (("tokens", "max_tokens"), ("patches", "max_patches")):
            check(alone or options[limit] is None or pack[count] <= options[limit], f"{count} of {name}: {pack}")
        for row in rows:
            check((partition, row) in left, f"row {row} of partition {partition} twice in {name}")
            left.remove((partition, row))
        yield {"table": name, **pack}
    check(packs == entry["packs"], f"packs of {name}")
    for sample in read_table(root, entry["overlong"]) if entry["overlong"] else []:
        check(lengths[sample["partition"]][sample["row"]]["n_tokens"] == sample["n_tokens"], f"left out: {sample}")
        left.remove((sample["partition"], sample["row"]))
        yield {"table": name, **sample}
    check(not left, f"in no pack of {name}: {sorted(left)}")


def main(root):
    manifest = read_sealed(root / "manifest.json")
    lengths = list(read_lengths(root, manifest))
    for path in sorted((root / "packs").glob("*.json")):
        entry = read_sealed(path)
        check(entry["name"] == path.stem, f"{path} is the entry of {entry['name']}")
        if entry["fingerprint"] == manifest["fingerprint"]:
            for line in read_packs(root, entry, lengths):
                print(json.dumps(line))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
