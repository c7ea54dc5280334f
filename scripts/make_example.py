#!/usr/bin/env python3
"""Make the pictures of examples/sft again from the photographs in the scikit-image wheel.

Only photographs that the package itself marks as CC0 or public domain are used
(examples/sft/LICENSES.md). The records, *.jsonl, are written by hand; this script checks
that they and the pictures belong together.

    python3 -m venv target/example-venv
    target/example-venv/bin/pip install pillow==12.0.0
    target/example-venv/bin/pip download --no-deps --only-binary=:all: -d target/wheels scikit-image==0.26.0
    target/example-venv/bin/python scripts/make_example.py target/wheels/scikit_image-0.26.0-*.whl
"""

import io
import json
import sys
import zipfile
from pathlib import Path

from PIL import Image, ImageDraw

SFT = Path(__file__).resolve().parent.parent / "examples" / "sft"
MAX_TOTAL_BYTES = 900_000
# Named by a record, absent or broken on purpose: the rejects of the quick start.
MISSING = {"images/never-uploaded.jpg"}


def load(wheel, name, mode="RGB"):
    """One photograph of the package, without its metadata."""
    picture = Image.open(io.BytesIO(wheel.read("skimage/data/" + name))).convert(mode)
    picture.info.clear()
    return picture


def encode(picture, fmt, **options):
    """The bytes of `picture` in format `fmt`."""
    out = io.BytesIO()
    picture.save(out, fmt, **options)
    return out.getvalue()


def rotated_by_tag(picture, **options):
    """What a telephone held upright writes: rotated pixels and EXIF orientation 6."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(picture.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif, **options)


def round_badge(picture, box):
    """A cut-out with transparent corners."""
    cut = picture.crop(box).convert("RGBA")
    mask = Image.new("L", cut.size, 0)
    ImageDraw.Draw(mask).ellipse((0, 0, cut.width - 1, cut.height - 1), fill=255)
    cut.putalpha(mask)
    return cut


def pictures(wheel):
    """-> {file name: bytes}: JPEG (4:2:0, 4:4:4, progressive, grey, CMYK, EXIF), PNG (grey, palette, alpha), WebP."""
    shrink = Image.Resampling.LANCZOS
    astronaut = load(wheel, "astronaut.png")
    rocket = load(wheel, "rocket.jpg")
    cat = load(wheel, "chelsea.png")
    coffee = load(wheel, "coffee.png")
    made = {
        "astronaut.jpg": encode(astronaut, "JPEG", quality=85, subsampling="4:2:0"),
        "astronaut-badge.png": encode(round_badge(astronaut, (128, 350, 212, 434)).resize((168, 168), shrink), "PNG", optimize=True),
        "rocket.jpg": encode(rocket, "JPEG", quality=85, subsampling="4:2:0"),
        "rocket-phone.jpg": rotated_by_tag(rocket.crop((200, 60, 440, 427)), quality=85, subsampling="4:2:0"),
        "cat.webp": encode(cat, "WEBP", quality=85, method=6),
        "cat-print.jpg": encode(cat.convert("CMYK"), "JPEG", quality=80),
        "coffee.jpg": encode(coffee, "JPEG", quality=85, subsampling="4:4:4", progressive=True),
        "coffee-palette.png": encode(coffee.resize((240, 160), shrink).quantize(64), "PNG", optimize=True),
        "deep-field.jpg": encode(load(wheel, "hubble_deep_field.jpg").resize((800, 698), shrink), "JPEG", quality=75),
        "retina.webp": encode(load(wheel, "retina.jpg").resize((640, 640), shrink), "WEBP", quality=80, method=6),
        "photographer.jpg": encode(load(wheel, "camera.png", "L"), "JPEG", quality=85),
        "bricks.png": encode(load(wheel, "brick.png", "L").resize((256, 256), shrink), "PNG", optimize=True),
        "grass.jpg": encode(load(wheel, "grass.png", "L").resize((384, 384), shrink), "JPEG", quality=80),
        "gravel.webp": encode(load(wheel, "gravel.png").resize((384, 384), shrink), "WEBP", quality=75, method=6),
    }
    whole = encode(rocket.resize((320, 214), shrink), "JPEG", quality=85)
    made["cut-off.jpg"] = whole[: len(whole) * 3 // 5]
    return made


def links(record):
    """Every image link of a record, whatever its shape."""
    out = []
    for key in ("image", "images"):
        value = record.get(key, [])
        out += [value] if isinstance(value, str) else value
    for message in record.get("messages", []):
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else []:
            if part["type"] == "image":
                out.append(part["image"])
            elif part["type"] == "image_url":
                out.append(part["image_url"]["url"])
    return out


def check(names):
    """Stop unless each picture is used and each link but the one meant to be missing exists."""
    used, records, broken = set(), 0, 0
    for path in sorted(SFT.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            records += 1
            try:
                used.update(links(json.loads(line)))
            except json.JSONDecodeError:
                broken += 1
    present = {"images/" + name for name in names}
    assert used - present == MISSING, used - present
    assert present <= used, present - used
    assert broken == 1, broken
    return records


def main():
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        made = pictures(wheel)
    folder = SFT / "images"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (folder / name).write_bytes(data)
    total = sum(map(len, made.values()))
    assert total < MAX_TOTAL_BYTES, total
    print("%d pictures, %d bytes, %d records" % (len(made), total, check(made)))


if __name__ == "__main__":
    main()
