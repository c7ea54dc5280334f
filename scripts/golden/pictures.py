"""The golden pictures: one small file for each kind that decoders and processors treat differently.

Made from photographs in the scikit-image wheel that are CC0 or public domain. Encoders may differ between Pillow
versions, so the committed files are the truth and are made again only on purpose.
"""

import importlib.util
import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 20261129
QUALITY = 85


def package_dir(name):
    """The folder of an installed package, without importing it."""
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def photo(name):
    """One photograph as RGB, without metadata."""
    picture = Image.open(package_dir("skimage") / "data" / name).convert("RGB")
    picture.info.clear()
    return picture


def fit(picture, w, h):
    """Cut from the middle to the aspect ratio, then resample: only input data, so any resampler will do."""
    scale = min(picture.width / w, picture.height / h)
    cw, ch = int(w * scale), int(h * scale)
    left, top = int((picture.width - cw) * 0.5), int((picture.height - ch) * 0.5)
    return picture.crop((left, top, left + cw, top + ch)).resize((w, h), Image.LANCZOS)


def png16(values, color_type):
    """A 16-bit PNG of H x W x C uint16 values (Pillow cannot write 16-bit RGB)."""
    h, w, _ = values.shape
    raw = b"".join(b"\0" + values[y].astype(">u2").tobytes() for y in range(h))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 16, color_type, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def encode(picture, fmt, **options):
    """The bytes of a picture."""
    out = io.BytesIO()
    picture.save(out, fmt, **options)
    return out.getvalue()


def jpeg(picture, **options):
    """The bytes of a picture as JPEG."""
    return encode(picture, "JPEG", **options)


def exif_jpeg(picture, orientation, **options):
    """A JPEG with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(picture, exif=exif, **options)


def alpha_ramp(w, h):
    """Waves between clear and opaque, with a fully clear and a fully opaque edge."""
    yy, xx = np.mgrid[0:h, 0:w]
    a = (255 * (0.5 + 0.5 * np.sin(xx / 17.0) * np.cos(yy / 23.0))).astype(np.uint8)
    a[: h // 5] = 0
    a[-h // 5:] = 255
    return Image.fromarray(a)


def with_alpha(picture, mode):
    """The picture with the alpha ramp, as RGBA or LA."""
    out = picture.convert(mode)
    out.putalpha(alpha_ramp(*picture.size))
    return out


def jpegs(a, b, c, d):
    """JPEG files of all subsamplings, grey, CMYK, progressive, EXIF, and sizes on rounding ties."""
    q = QUALITY
    return {
        "rgb_420_baseline.jpg": jpeg(fit(a, 320, 240), quality=q, subsampling="4:2:0"),
        "rgb_420_progressive.jpg": jpeg(fit(b, 427, 320), quality=q - 5, subsampling="4:2:0", progressive=True),
        "rgb_444.jpg": jpeg(fit(c, 300, 300), quality=q + 5, subsampling="4:4:4", optimize=True),
        "rgb_422.jpg": jpeg(fit(d, 333, 251), quality=q, subsampling="4:2:2"),
        "gray.jpg": jpeg(fit(b, 311, 207).convert("L"), quality=q),
        "cmyk.jpg": jpeg(fit(c, 256, 256).convert("CMYK"), quality=q),
        "exif_orientation6.jpg": exif_jpeg(fit(a, 353, 211), 6, quality=q, subsampling="4:2:0"),
        "exif_orientation5.jpg": exif_jpeg(fit(d, 240, 368), 5, quality=q, subsampling="4:4:4"),
        "small_28x28.jpg": jpeg(fit(a, 28, 28), quality=95, subsampling="4:4:4"),
        "bankers_a.jpg": jpeg(fit(a, 272, 304), quality=q),
        "bankers_b.jpg": jpeg(fit(b, 304, 272), quality=q),
        "below_min.jpg": jpeg(fit(c, 300, 200), quality=q),
        "above_ft_max.jpg": jpeg(fit(b, 688, 688), quality=q - 10),
        "photo_large.jpg": jpeg(fit(a, 800, 600), quality=q - 5),
    }


def lossless(a, b, c, d, rng):
    """PNG of all colour types and depths, WebP, GIF, and very small or thin pictures. The order of draws matters."""
    out = {"rgba.png": encode(with_alpha(fit(a, 301, 199), "RGBA"), "PNG", optimize=True),
           "palette.png": encode(fit(b, 224, 224).quantize(64), "PNG", optimize=True),
           "palette_transparent.png": encode(fit(c, 250, 190).quantize(32), "PNG", transparency=3, optimize=True)}
    grey = np.asarray(fit(b, 200, 260).convert("L")).astype(np.uint16)
    out["gray16.png"] = png16((grey * 257 ^ rng.integers(0, 64, grey.shape).astype(np.uint16))[..., None], 0)
    out["gray_alpha.png"] = encode(with_alpha(fit(d, 270, 180), "LA"), "PNG", optimize=True)
    out["rgb16.png"] = png16(np.asarray(fit(c, 180, 150)).astype(np.uint16) * 257, 2)
    out["bilevel.png"] = encode(fit(c, 190, 140).convert("1"), "PNG")
    out["lossy.webp"] = encode(fit(c, 350, 260), "WEBP", quality=QUALITY)
    few = with_alpha(fit(b, 288, 288), "RGBA").quantize(48).convert("RGBA")
    out["alpha_lossless.webp"] = encode(few, "WEBP", lossless=True)
    out["static.gif"] = encode(fit(d, 150, 110).quantize(48), "GIF")
    out["tiny_1x1.png"] = encode(Image.new("RGB", (1, 1), tuple(int(v) for v in rng.integers(0, 256, 3))), "PNG")
    noise = rng.integers(0, 256, (12, 1800, 3), dtype=np.uint8).astype(int)
    strip = np.asarray(fit(b, 1800, 12)).astype(int)
    out["extreme_aspect.png"] = encode(Image.fromarray(((noise + 3 * strip) // 4).astype(np.uint8)), "PNG")
    out["near_square.png"] = encode(fit(d, 256, 255).quantize(96).convert("RGB"), "PNG", optimize=True)
    return out


def golden():
    """-> {file name: bytes}, broken files included."""
    photos = photo("astronaut.png"), photo("coffee.png"), photo("chelsea.png"), photo("rocket.jpg")
    out = {**jpegs(*photos), **lossless(*photos, np.random.default_rng(SEED))}
    out["too_extreme.png"] = encode(Image.new("RGB", (1005, 5), (200, 30, 90)), "PNG")
    whole = out["rgb_420_baseline.jpg"]
    out["truncated.jpg"] = whole[: int(len(whole) * 0.6)]
    out["not_an_image.jpg"] = b"<html>404 not found</html>\n"
    return out
