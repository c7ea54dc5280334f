"""The limits of the builder's stages, each alone on one core, over what a build has just read and written.

usage: python -m build.limits SPEC, a JSON object: cache, model, records, samples, row_bytes, folder; prints one. All but the
tokenizer work on the bytes of the cache's shards, 1 GiB of them at most.
"""

import json
import mmap
import os
import sys
import time
from pathlib import Path

from build import peer

PIECE, BYTES_MAX = 4 << 20, 1 << 30
TEXTS_MAX = 400


def shards(cache):
    """The bytes of the image shards, in whole pieces as far as they go, at a page's border."""
    out = mmap.mmap(-1, BYTES_MAX)
    for path in sorted(Path(cache).glob("images-*/shards/*.arrow")):
        out.write(path.read_bytes()[:BYTES_MAX - out.tell()])
    return memoryview(out)[:max(PIECE, out.tell() // PIECE * PIECE)]


def cpu_ns_byte(data, size, work, seconds=1.0):
    """CPU nanoseconds a byte of `work` over pieces of `size` bytes, again and again."""
    pieces = [data[at:at + size] for at in range(0, len(data) - size + 1, size)]
    done, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        for piece in pieces:
            work(piece)
        done += size * len(pieces)
    return 1e9 * (time.process_time() - start) / done


def copier(size):
    """Copies a piece into one of three buffers in turn, as large as a row."""
    buffers, turn = [memoryview(bytearray(size)) for _ in range(3)], [0]

    def copy(piece):
        turn[0] = (turn[0] + 1) % 3
        buffers[turn[0]][:] = piece
    return copy


def direct_write(data, folder):
    """Wall and CPU nanoseconds a byte of writes past the page cache with a sync at the end; and whether there is such a way."""
    path, direct = Path(folder, "direct"), True
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
    except OSError:
        file, direct = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), False
    wall, cpu = time.perf_counter(), time.process_time()
    for at in range(0, len(data), PIECE):
        if os.write(file, data[at:at + PIECE]) != PIECE:
            raise SystemExit("a short write below `%s`" % folder)
    os.fsync(file)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    os.close(file)
    path.unlink()
    return {"write_ns_byte": 1e9 * wall / len(data), "write_cpu_ns_byte": 1e9 * cpu / len(data), "direct": direct}


def tokenizer(model, records, count):
    """CPU ms a text of the tokenizer alone, one text a call; templates are rendered before and image pads not repeated."""
    import tokenizers

    process, _ = peer.processor(Path(model), None)
    source = peer.samples(Path(records))
    texts = [process.apply_chat_template(next(source)[0], tokenize=False) for _ in range(min(count, TEXTS_MAX))]
    alone = tokenizers.Tokenizer.from_file(str(Path(model, "tokenizer.json")))
    tokens, start = 0, time.process_time()
    for text in texts:
        tokens += len(alone.encode(text, add_special_tokens=False).ids)
    return {"tokenizer_ms": 1000 * (time.process_time() - start) / len(texts), "text_tokens": tokens / len(texts),
            "tokenizers": tokenizers.__version__}


def main():
    spec = json.loads(sys.argv[1])
    import blake3
    import xxhash

    data, size = shards(spec["cache"]), spec["row_bytes"]
    print(json.dumps({
        "copy_ns_byte": cpu_ns_byte(data, size, copier(size)),
        "blake3_ns_byte": cpu_ns_byte(data, PIECE, lambda piece: blake3.blake3(piece).digest()),
        "xxh3_ns_byte": cpu_ns_byte(data, size, lambda piece: xxhash.xxh3_64(piece).digest()),
        **direct_write(data, spec["folder"]), **tokenizer(spec["model"], spec["records"], spec["samples"]),
    }), flush=True)


if __name__ == "__main__":
    main()
