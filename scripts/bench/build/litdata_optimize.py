"""LitData's `optimize` with transformers' fast processor as its function: the peer that does the same job, from pictures to files.

usage: python -m build.litdata_optimize SPEC, a JSON object; prints one. Its best case: it stores what Stoker stores, ids and one byte a
pixel, so it does not normalise, and drops the frame that the processor doubles. Starting up is left out: workers are forked when all
modules are loaded, the clock starts when the last of them has prepared one sample, and their CPU time counts from there. Afterwards the
files are read and compared.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

from build import peer
from build.reference import digests


class Prepare:
    """What each worker calls with the number of each record: made in the parent, filled in the worker."""

    def __init__(self, spec):
        self.spec, self.records, self.process = spec, Path(spec["records"]), None

    def __call__(self, number):
        if self.process is None:
            self.lines = self.records.read_text(encoding="utf-8").splitlines()
            self.process, _ = peer.processor(Path(self.spec["model"]), self.spec["max_pixels"])
            self.make(number)
            start = {"at": time.time(), "cpu_s": cpu_seconds()}
            Path(self.spec["folder"], "start-%d.json" % os.getpid()).write_text(json.dumps(start))
        return {"number": number, **self.make(number)}

    def make(self, number):
        messages, images = peer.parse(self.lines[number], self.records.parent)
        text = self.process.apply_chat_template(messages, tokenize=False)
        out = self.process(text=[text], images=images, return_tensors="pt", do_rescale=False, do_normalize=False)
        rows = out["pixel_values"]
        return {"ids": out["input_ids"][0], "pixels": rows.view(len(rows), 3, 2, 256)[:, :, 0].contiguous()}


def floats(pixels):
    """Stored bytes as the processor's float32 patches."""
    values = (pixels.float() - 127.5) / 127.5
    return values[:, :, None].expand(-1, -1, 2, -1).reshape(len(values), -1)


def cpu_seconds():
    """Of this process and its ended children."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def main():
    spec = json.loads(sys.argv[1])
    import litdata

    folder, out = Path(spec["folder"]), Path(spec["folder"], "out")
    # For its modules.
    peer.processor(Path(spec["model"]), spec["max_pixels"])
    records, before = list(range(spec["samples"])), cpu_seconds()
    litdata.optimize(fn=Prepare(spec), inputs=records, output_dir=str(out), num_workers=spec["workers"], chunk_bytes="64MB",
                     start_method="fork")
    end, cpu = time.time(), cpu_seconds() - before
    starts = [json.loads(path.read_text()) for path in folder.glob("start-*.json")]
    found, numbers = [None] * spec["checked"], set()
    data = litdata.StreamingDataset(str(out))
    for i in range(len(data)):
        sample = data[i]
        number = int(sample["number"])
        numbers.add(number)
        if number < len(found):
            found[number] = digests(sample["ids"], floats(sample["pixels"]))
    if len(starts) != spec["workers"] or len(data) != len(records) or len(numbers) != len(records):
        raise SystemExit("%d workers wrote %d samples, %d different ones, of %d" % (len(starts), len(data), len(numbers), len(records)))
    print("\n" + json.dumps({
        "samples": len(records), "wall_s": end - max(start["at"] for start in starts),
        "cpu_s": cpu - sum(start["cpu_s"] for start in starts), "version": litdata.__version__, "digests": found,
        "bytes": sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
    }), flush=True)


if __name__ == "__main__":
    main()
