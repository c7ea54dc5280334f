#!/usr/bin/env python3
"""Write tests/golden/expected/patch14.jsonl: what the Pillow image processor of Qwen2-VL and Qwen2.5-VL, one class for both,
makes of each golden picture, given as a path.

usage: make_golden_patch14.py     needs PyPI transformers 4.57.6, pillow 12.0.0 and numpy; no torch
"""
import hashlib
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

GOLDEN = Path(__file__).resolve().parent.parent / "tests/golden"
# The limits in the models' preprocessor_config.json; patch size, mean and deviation are the class's own.
LIMITS = {"min_pixels": 3136, "max_pixels": 12845056}


def row(processor, path):
    made = {"image": f"images/{path.name}"}
    try:
        out = processor(images=[str(path)], return_tensors="np")
    except Exception as error:
        return made | {"error": f"{type(error).__name__}: {error}".replace(str(GOLDEN), "")}
    values, grid = out["pixel_values"], out["image_grid_thw"][0].tolist()
    assert values.dtype == np.float32 and values.shape == (grid[1] * grid[2], 1176)
    return made | {"grid_thw": grid, "pixel_values_sha256": hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()}


def main():
    processor = Qwen2VLImageProcessor(**LIMITS)
    rows = [row(processor, path) for path in sorted((GOLDEN / "images").iterdir())]
    text = "".join(json.dumps(made) + "\n" for made in rows)
    (GOLDEN / "expected/patch14.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
