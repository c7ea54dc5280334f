"""Resizing as the peers do it: CPU ms a picture of torchvision (channels last) or of Pillow, one thread.

usage: python -m build.peer_resize torchvision|pillow FOLDER MAX_PIXELS OURS. Prints one JSON object: the mean over the pictures of
the median of five tries, and how many pictures have the same bytes as those that `bench_image` has written to the folder OURS. The
installed Pillow may be Pillow-SIMD, which reads no JPEG here: torchvision decodes.
"""

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"


def target(height, width, max_pixels, factor=32):
    """The size that Qwen3-VL's processor gives a large picture (the branch that enlarges is not needed here)."""
    h, w = (max(factor, round(v / factor) * factor) for v in (height, width))
    if max_pixels and h * w > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        h, w = (max(factor, math.floor(v / beta / factor) * factor) for v in (height, width))
    return h, w


def median_ms(call, tries=5):
    """Median CPU time of `call`, which is tried once before; and what it gives."""
    out, times = call(), []
    for _ in range(tries):
        start = time.process_time()
        call()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times), out


def torchvision_resize(picture, size):
    """-> call, and how its result becomes rows of RGB."""
    import torch
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    last = picture[None].contiguous(memory_format=torch.channels_last)
    return (lambda: F.resize(last, list(size), interpolation=InterpolationMode.BICUBIC, antialias=True),
            lambda out: out[0].permute(1, 2, 0).contiguous().numpy().tobytes())


def pillow_resize(picture, size):
    """The same."""
    from PIL import Image

    image = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy())
    return lambda: image.resize(size[::-1], Image.Resampling.BICUBIC), lambda out: out.tobytes()


def main():
    kernel, folder, max_pixels, ours = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    import torch
    import torchvision
    from PIL import Image

    torch.set_num_threads(1)
    times, same = [], {}
    written = sorted(ours.glob("*.rgb"))
    for path in sorted(folder.glob("*.jpg")):
        mine = [other for other in written if other.name.startswith(path.stem + ".")]
        if not mine:
            continue
        picture = torchvision.io.decode_image(str(path))
        call, rgb = {"torchvision": torchvision_resize, "pillow": pillow_resize}[kernel](
            picture, target(*picture.shape[-2:], max_pixels))
        ms, out = median_ms(call)
        times.append(ms)
        made = rgb(out)
        for other in mine:
            name = other.name.split(".")[1]
            same[name] = same.get(name, 0) + (other.read_bytes() == made)
    version = torchvision.__version__ if kernel == "torchvision" else Image.__version__
    print(json.dumps({"ms": statistics.mean(times), "pictures": len(times), "same": same, "version": version}))


if __name__ == "__main__":
    main()
