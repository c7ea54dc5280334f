"""Resizing as the peers do it: CPU ms a picture of torchvision (channels last) and of Pillow, one thread.

usage: python peer_resize.py FOLDER MAX_PIXELS. Prints one JSON line: means over the pictures of the median of five tries.
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
    if h * w > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        h, w = (max(factor, math.floor(v / beta / factor) * factor) for v in (height, width))
    return h, w


def median_ms(call, tries=5):
    """Median CPU time of `call`, which is tried once before."""
    call()
    times = []
    for _ in range(tries):
        start = time.process_time()
        call()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times)


def main():
    import torch
    import torchvision
    from PIL import Image
    from torchvision.transforms.v2 import functional as F

    torch.set_num_threads(1)
    folder, max_pixels = Path(sys.argv[1]), int(sys.argv[2])
    bicubic = torchvision.transforms.InterpolationMode.BICUBIC
    rows = {"torchvision_ms": [], "pillow_ms": [], "torchvision_decode_ms": []}
    for path in sorted(folder.glob("*.jpg"))[:12]:
        picture = Image.open(path).convert("RGB")
        h, w = target(picture.height, picture.width, max_pixels)
        tensor = torchvision.io.decode_image(str(path))[None].contiguous(memory_format=torch.channels_last)
        rows["torchvision_ms"].append(median_ms(lambda: F.resize(tensor, [h, w], interpolation=bicubic, antialias=True)))
        rows["pillow_ms"].append(median_ms(lambda: picture.resize((w, h), Image.Resampling.BICUBIC)))
        rows["torchvision_decode_ms"].append(median_ms(lambda: torchvision.io.decode_image(str(path))))
    print(json.dumps({k: statistics.mean(v) for k, v in rows.items()} | {
        "torchvision": torchvision.__version__, "pillow": Image.__version__}))


if __name__ == "__main__":
    main()
