#!/usr/bin/env python3
"""Reads a whole Stoker cache with pyarrow, from what formats/FORMAT.md says and nothing else.

usage: read_cache.py CACHE

Prints one JSON line for each sample, with all its values and the SHA-256 of its images' patches. Checks sizes, the
order of rows, and that every index entry points at the values that Arrow reads. Hashes and row checksums are checked
where the packages blake3 and xxhash are installed. Any fault ends it with a message and exit code 1.
"""
import hashlib
import json
import pathlib
import struct
import sys

import pyarrow as pa

try:
    import blake3
except ImportError:
    blake3 = None
try:
    import xxhash
except ImportError:
    xxhash = None

NULL = 2**32 - 1
I32, U32, U64 = pa.int32(), pa.uint32(), pa.uint64()


def fixed(width):
    return pa.list_(pa.field("item", I32, nullable=False), width)


def large(kind):
    return pa.large_list(pa.field("item", kind, nullable=False))


SHARDS = {
    "image-shard": [("key", pa.binary(16)), ("grid_thw", fixed(3)), ("size", fixed(2)), ("patches", pa.large_binary())],
    "sample-shard": [("sample_id", pa.large_string()), ("record_id", pa.large_string()), ("input_ids", large(I32)),
                     ("labels", large(I32)), ("images", large(U32)), ("image_grid_thw", large(fixed(3)))],
    "image-index": [("key", pa.binary(16)), ("shard", U32), ("offset", U64), ("length", U64), ("grid_thw", fixed(3)),
                    ("size", fixed(2)), ("checksum", U64)],
    "sample-index": [("shard", U32)]
    + [(name, U64) for name in ("input_ids", "labels", "images", "image_grid_thw", "sample_id", "record_id")]
    + [(name, U32) for name in ("n_tokens", "n_loss_tokens", "n_images", "n_patches", "sample_id_bytes",
                                "record_id_bytes")] + [("checksum", U64)],
}


def check(condition, what):
    if not condition:
        sys.exit(f"error: {what}")


def product(grid):
    return grid[0] * grid[1] * grid[2]


def read_sealed(path):
    data = path.read_bytes()
    body, _, seal = data.rpartition(b',"seal":"')
    check(len(seal) == 64 + 3 and seal.endswith(b'"}\n'), f"{path} has no seal")
    if blake3:
        check(blake3.blake3(body).hexdigest().encode() == seal[:64], f"{path} does not fit its seal")
    document = json.loads(data)
    check(document["format_version"]["major"] == 1, f"format version {document['format_version']}")
    return document


def read_file(path, size, digest):
    data = path.read_bytes()
    check(len(data) == size, f"{path} has {len(data)} of {size} bytes")
    if blake3:
        check(blake3.blake3(data).hexdigest() == digest, f"{path} does not fit its hash")
    return data


def read_arrow(data, kind, partition, rows, **metadata):
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    wanted = pa.schema([pa.field(name, of, nullable=name == "record_id" and kind == "sample-shard")
                        for name, of in SHARDS[kind]])
    check(table.schema.remove_metadata().equals(wanted), f"schema of a {kind}: {table.schema}")
    found = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    wanted = {"stoker.format": "1.0", "stoker.kind": kind, "stoker.partition": str(partition), **metadata}
    check(wanted.items() <= found.items(), f"metadata of a {kind}: {found}")
    check(table.num_rows == rows, f"a {kind} of partition {partition} has {table.num_rows} of {rows} rows")
    return table.to_pylist()


def read_rows(folder, kind, partition, files):
    """Yields (row number, index entry, bytes of the shard, row as Arrow has it)."""
    entry = files["index"]
    data = read_file(folder / f"index/p{partition:04}.arrow", entry["bytes"], entry["hash"])
    index = read_arrow(data, f"{kind}-index", partition, entry["rows"])
    shards, first = files["shards"], 0
    for ordinal, (size, rows) in enumerate(zip(shards["bytes"], shards["rows"])):
        if size == 0:
            continue
        digest = shards["hashes"][64 * ordinal:64 * (ordinal + 1)]
        data = read_file(folder / f"shards/p{partition:04}-{ordinal:06}.arrow", size, digest)
        metadata = {"stoker.shard": str(ordinal), "stoker.first_row": str(first)}
        for at, row in enumerate(read_arrow(data, f"{kind}-shard", partition, rows, **metadata), first):
            check(index[at]["shard"] == ordinal, f"the index has another shard for {kind} row {at}")
            yield at, index[at], data, row
        first += rows
    check(first == len(index), f"{kind} shards of partition {partition} have {first} of {len(index)} rows")


def check_row(kind, partition, row, entry, covered):
    if xxhash:
        found = xxhash.xxh3_64_intdigest(covered)
        check(found == entry["checksum"], f"checksum of {kind} row {row}, partition {partition}")


def read_images(folder, partition, files):
    images = []
    for row, entry, data, image in read_rows(folder, "image", partition, files):
        patches, grid, size = image["patches"], image["grid_thw"], image["size"]
        check(data[entry["offset"]:entry["offset"] + entry["length"]] == patches, f"patches of image row {row}")
        check(all(entry[name] == image[name] for name in ("key", "grid_thw", "size")), f"index of image row {row}")
        check(len(patches) % product(grid) == 0, f"patches of image row {row} do not fill its grid")
        head = b"STKI" + struct.pack("<IQ5i", partition, row, *grid, *size) + image["key"]
        check_row("image", partition, row, entry, head + struct.pack("<Q", len(patches)) + patches)
        images.append({"key": image["key"].hex(), "grid_thw": grid, "size": size,
                       "patches_sha256": hashlib.sha256(patches).hexdigest()})
    return images


def read_samples(folder, partition, files, images):
    for row, entry, data, sample in read_rows(folder, "sample", partition, files):
        ids, labels, record_id = sample["input_ids"], sample["labels"], sample["record_id"]
        grids = [side for grid in sample["image_grid_thw"] for side in grid]
        texts = {"sample_id": sample["sample_id"].encode(), "record_id": (record_id or "").encode()}
        lengths = {"sample_id_bytes": len(texts["sample_id"]),
                   "record_id_bytes": NULL if record_id is None else len(texts["record_id"]),
                   "n_tokens": len(ids), "n_images": len(sample["images"]),
                   "n_loss_tokens": sum(label != -100 for label in labels),
                   "n_patches": sum(map(product, sample["image_grid_thw"]))}
        check(all(entry[name] == value for name, value in lengths.items()), f"counts of sample row {row}: {lengths}")
        numbers = {"input_ids": ("i", ids), "labels": ("i", labels), "images": ("I", sample["images"]),
                   "image_grid_thw": ("i", grids)}
        parts = {name: struct.pack(f"<{len(values)}{code}", *values) for name, (code, values) in numbers.items()}
        for name, part in (texts | parts).items():
            check(data[entry[name]:entry[name] + len(part)] == part, f"the index misses {name} of sample row {row}")
        check([images[image]["grid_thw"] for image in sample["images"]] == sample["image_grid_thw"],
              f"grids of sample row {row} are not those of its images")
        head = struct.pack("<IQ4I", partition, row, len(ids), len(sample["images"]), lengths["sample_id_bytes"],
                           lengths["record_id_bytes"])
        check_row("sample", partition, row, entry, b"STKS" + head + b"".join([*texts.values(), *parts.values()]))
        yield {**sample, "partition": partition, "row": row, "image_rows": [images[at] for at in sample["images"]]}


def main(root):
    manifest = read_sealed(root / "manifest.json")
    image_folder = root / f"images-{manifest['image_plan_id']}"
    text_folder = root / f"text-{manifest['text_plan_id']}"
    for split in manifest["splits"]:
        for partition in range(split["first_partition"], split["first_partition"] + split["partitions"]):
            files = manifest["partitions"][partition]
            images = read_images(image_folder, partition, files["images"])
            for sample in read_samples(text_folder, partition, files["samples"], images):
                print(json.dumps({"split": split["name"], **sample}))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
