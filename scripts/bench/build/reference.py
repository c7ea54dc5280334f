"""What samples must come out as: hashes of the ids and of the float32 patches, and how a cache is held against them.

Every contender tells the hashes of its first samples. Those of the processor whose pixels it should have are the reference; what
differs is shown as failing, not as fast.

usage: python -m build.reference CACHE COUNT RECORDS prints the hashes of a cache's first samples as a JSON list.
"""

import hashlib
import json
import sys

# Records whose bytes are compared; of all others the shape.
CHECKED = 8


def digest(tensor):
    """A hash of the bytes of a tensor."""
    return hashlib.blake2b(tensor.contiguous().numpy().data, digest_size=16).hexdigest()


def digests(ids, pixels):
    """Of one sample; `ids` is None where a contender makes none."""
    return {"ids": None if ids is None else digest(ids), "shape": list(pixels.shape), "pixels": digest(pixels)}


def wrong(found, wanted):
    """How many samples differ. Both are lists of `digests`, by number of the record; None is a sample that is missing."""
    def same(one, other):
        return one is not None and all(value in (None, other[name]) for name, value in one.items())
    return sum(not same(one, other) for one, other in zip(found, wanted, strict=True))


def of_cache(cache, count, records):
    """`digests` of the first `count` of the `records` samples of a cache, as Stoker's reader delivers them."""
    import stoker

    out, seen = [None] * count, 0
    with stoker.Reader(cache, global_batch_size=1, micro_batch_size=1, dtype="float32", layout="padded", shuffle="none", tail="all",
                       sample_ids=True, tensors="torch") as reader:
        for batch in reader:
            # Lines count from 1.
            number = int(batch["sample_ids"][0].rsplit(":", 1)[1]) - 1
            seen += 1
            if number < count:
                out[number] = digests(batch["input_ids"][0], batch["pixel_values"])
    if seen != records:
        raise SystemExit("the cache holds %d samples instead of %d" % (seen, records))
    return out


if __name__ == "__main__":
    print(json.dumps(of_cache(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
