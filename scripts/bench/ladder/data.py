"""What every rung reads: records and JPEG files behind the loopback server, and what each sample must come out as.

The reference is made by the Hugging Face processor, one sample a call, once for each set of records; it holds hashes for the check
of whole samples and a few numbers for the cheap check of every sample that is delivered.
"""

import io
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from build import corpus, measure, peer
from build.reference import digest

PICTURES = "1024x768"
BUCKET = "bench"
PROBES = 8


class Data:
    """`count` records in a bucket's folder below `work`, for a processor that keeps pictures below `max_pixels`."""

    def __init__(self, work, model, count, max_pixels):
        self.work, self.model, self.count, self.max_pixels = Path(work), Path(model), count, max_pixels
        self.root = self.work / "buckets"
        self.records = self.root / BUCKET / str(count) / "records.jsonl"

    def make(self):
        """Write what is not there yet."""
        corpus.write_pictures(self.work / "pictures", self.work / "wheels")
        corpus.write_records(self.records.parent, self.work / "pictures" / PICTURES, self.count)
        self.reference()

    def samples(self):
        """(messages, path of the picture below the server's root) of each record."""
        out = []
        for line in self.records.read_text(encoding="utf-8").splitlines():
            messages = json.loads(line)["messages"]
            link = next(p["image"] for m in messages if isinstance(m["content"], list) for p in m["content"] if p["type"] == "image")
            out.append((messages, "/%s/%d/%s" % (BUCKET, self.count, link)))
        return out

    def reference(self):
        """A dict for each record: n_ids, ids_sum, ids, grid, pixels (hashes) and probes."""
        path = self.work / "ladder" / ("reference-%d-%d.jsonl" % (self.count, self.max_pixels))
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            print("making the reference of %d samples" % self.count, file=sys.stderr)
            shares = [range(i, self.count, measure.CORES) for i in range(measure.CORES)]
            with ProcessPoolExecutor(measure.CORES) as pool:
                done = dict(pair for pairs in pool.map(reference_of, [self] * len(shares), shares) for pair in pairs)
            partial = path.with_suffix(".part")
            partial.write_text("".join(json.dumps(done[i]) + "\n" for i in range(self.count)), encoding="utf-8")
            partial.rename(path)
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def reference_of(data, share):
    """(number, reference) of the records in `share`."""
    process, _ = peer.processor(data.model, data.max_pixels)
    samples = data.samples()
    out = []
    for i in share:
        messages, link = samples[i]
        ids, pixels, grid = prepare(process, messages, (data.root / link.lstrip("/")).read_bytes())
        out.append((i, {"n_ids": len(ids), "ids_sum": int(ids.sum()), "ids": digest(ids), "grid": grid[0].tolist(),
                        "pixels": digest(pixels), "probes": probes(pixels)}))
    return out


def prepare(process, messages, picture):
    """The whole work on one sample -> input_ids (int64), pixel_values (float32), image_grid_thw."""
    from PIL import Image

    text = process.apply_chat_template(messages, tokenize=False)
    out = process(text=[text], images=[Image.open(io.BytesIO(picture))], return_tensors="pt")
    return out["input_ids"][0], out["pixel_values"], out["image_grid_thw"]


def probes(pixels):
    """A few values at places spread over the sample, exact in float32."""
    rows, columns = pixels.shape
    return [float(pixels[rows * i // PROBES, (columns * i // PROBES + 97 * i) % columns]) for i in range(PROBES)]


class Server:
    """The loopback server with a delay on every answer, for a `with` block."""

    def __init__(self, data, latency_ms):
        self.command = [sys.executable, "-B", str(Path(corpus.__file__).with_name("server.py")), str(data.root), str(latency_ms)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.endpoint, self.key, self.secret = self.process.stdout.readline().split()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def environment(self):
        """What an S3 client needs."""
        return {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_REGION": "us-east-1"}


def drop_pages(folder):
    """Have the system forget the files of a folder; they must be read from the disk again."""
    for path in Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touch_pages(folder):
    """Bring the files of a folder into the page cache."""
    for path in Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 22):
                    pass
