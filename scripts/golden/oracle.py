"""The installed transformers as an oracle for Qwen3-VL: pixels, text, positions. Nothing is computed by our rules."""

import json
import os
import types
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import numpy as np
import torch
import transformers
from PIL import Image

HF_SIZE = {"shortest_edge": 65536, "longest_edge": 16777216}  # Qwen3-VL's preprocessor_config.json
FT_SIZE = {"shortest_edge": 12544, "longest_edge": 451584}  # defaults of Qwen's finetune script
COMMON = dict(patch_size=16, temporal_patch_size=2, merge_size=2,
              image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5])
IMAGE_PAD, VIDEO_PAD, VISION_START = 151655, 151656, 151652
# profile: (image processor, how the picture is handed over)
PROFILES = {"tv_path": ("tv", "path"), "tv_pilobj": ("tv", "pilobj"), "pil_path": ("pil", "path"),
            "tv_path_ft": ("tv_ft", "path"), "qwenvl": ("tv", "qwenvl")}
MAJOR = int(transformers.__version__.split(".")[0])
NAME = "hf5" if MAJOR >= 5 else "hf4"


def load_tokenizer(path):
    """The fast tokenizer of `tokenizer.json`, with the special tokens that the file itself marks."""
    added = json.loads(path.read_text(encoding="utf-8"))["added_tokens"]
    extra = [t["content"] for t in added if t["special"] and t["content"] != "<|endoftext|>"]
    common = dict(tokenizer_file=str(path), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if MAJOR >= 5:
        return transformers.PreTrainedTokenizerFast(extra_special_tokens=extra, **common)
    return transformers.Qwen2TokenizerFast(additional_special_tokens=extra, **common)


def image_processors():
    """The torchvision class with two limits, and the Pillow class."""
    if MAJOR >= 5:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil as Pil
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor as Tv

        pil = Pil(size=dict(HF_SIZE), **COMMON)
    else:
        from transformers import Qwen2VLImageProcessor as Pil
        from transformers import Qwen2VLImageProcessorFast as Tv

        # The slow class of transformers 4.57 drops `size`; only min_pixels and max_pixels reach it.
        pil = Pil(min_pixels=HF_SIZE["shortest_edge"], max_pixels=HF_SIZE["longest_edge"], **COMMON)
    return {"tv": Tv(size=dict(HF_SIZE), **COMMON), "pil": pil, "tv_ft": Tv(size=dict(FT_SIZE), **COMMON)}


def hand_over(path, how):
    """The picture as the profile's users pass it, and the call's extra options."""
    if how == "path":
        return str(path), {}
    if how == "pilobj":
        return Image.open(path), {}
    from qwen_vl_utils import fetch_image

    return fetch_image({"image": str(path)}, image_patch_size=16), {"do_resize": False}


class Oracle:
    """One generation of the library with the real tokenizer and templates."""

    def __init__(self, tokenizer_file, template, training_template):
        from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

        torch.set_num_threads(1)
        tokenizer = load_tokenizer(tokenizer_file)
        self.training_template = training_template
        self.images = image_processors()
        video = Qwen3VLVideoProcessor(**COMMON)
        self.processors = {name: Qwen3VLProcessor(image_processor=images, tokenizer=tokenizer, video_processor=video,
                                                  chat_template=template) for name, images in self.images.items()}

    def picture(self, path, profile):
        """-> (pixel_values float32 [patches, 1536], grid_thw)."""
        name, how = PROFILES[profile]
        picture, options = hand_over(path, how)
        out = self.images[name](images=[picture], return_tensors="pt", **options)
        values, grid = out["pixel_values"].numpy(), out["image_grid_thw"][0].tolist()
        assert values.dtype == np.float32 and values.shape == (grid[1] * grid[2], 1536)
        return values, grid

    def positions(self, ids, grids):
        """The model class's own get_rope_index, without building a model. -> ([3][n], delta)."""
        from transformers.models.qwen3_vl import modeling_qwen3_vl as model

        config = types.SimpleNamespace(image_token_id=IMAGE_PAD, video_token_id=VIDEO_PAD, vision_start_token_id=VISION_START,
                                       vision_config=types.SimpleNamespace(spatial_merge_size=2))
        me = types.SimpleNamespace(config=config)
        x, grid = torch.tensor([ids]), torch.tensor(grids) if grids else None
        if MAJOR >= 5:
            me.get_vision_position_ids = types.MethodType(model.Qwen3VLModel.get_vision_position_ids, me)
            found, delta = model.Qwen3VLModel.get_rope_index(me, x, (x == IMAGE_PAD).int(), image_grid_thw=grid)
        else:
            found, delta = model.Qwen3VLModel.get_rope_index(me, x, image_grid_thw=grid)
        return found[:, 0].tolist(), int(delta.flatten()[0])


def table(profile):
    """The float32 value of each of the 256 bytes in that profile."""
    u = np.arange(256, dtype=np.uint8).astype(np.float32)
    if profile == "pil_path":
        return (u / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    return (u - np.float32(127.5)) / np.float32(127.5)


def unpatchify(values, grid, profile):
    """pixel_values -> H x W x 3 uint8: exact, because the map from byte to float is one to one."""
    _, gh, gw = grid
    lut = table(profile)
    order = np.argsort(lut)
    index = order[np.minimum(np.searchsorted(lut[order], values), 255)]
    assert np.array_equal(lut[index], values), "pixel_values are not in the 256-entry table"
    x = index.astype(np.uint8).reshape(gh // 2, gw // 2, 2, 2, 3, 2, 16, 16)
    assert np.array_equal(x[:, :, :, :, :, 0], x[:, :, :, :, :, 1])
    x = x[:, :, :, :, :, 0].transpose(0, 2, 5, 1, 3, 6, 4)
    return np.ascontiguousarray(x.reshape(gh * 16, gw * 16, 3))
