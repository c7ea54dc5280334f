"""One worker of a peer, in this interpreter: transformers' processor and tokenizer, or torchvision alone, over a record file.

usage: python -m build.peer SPEC, a JSON object; prints "ready" and then one. It computes what training needs of a sample and keeps
nothing: no labels, no file is written, which favours the peer. One sample a call is its best case: batches of 4 and 8 took 1.1 to 2
times the CPU time a sample. Before the clock starts the first samples' bytes are hashed; inside it every shape is compared.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

from build.reference import digests

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

MIN_PIXELS, MAX_PIXELS = 65_536, 16_777_216
IMAGE_PAD = 151_655


def image_processor(max_pixels, slow):
    """The Qwen3-VL image processor of torchvision, or the slow one of Pillow."""
    import transformers

    common = dict(patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    size = {"shortest_edge": MIN_PIXELS, "longest_edge": max_pixels or MAX_PIXELS}
    if int(transformers.__version__.split(".")[0]) >= 5:
        if slow:
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil as Images
        else:
            from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor as Images
        return Images(size=size, **common)
    if slow:
        # That of transformers 4.57 drops `size`; only these two reach it.
        return transformers.Qwen2VLImageProcessor(min_pixels=MIN_PIXELS, max_pixels=size["longest_edge"], **common)
    return transformers.Qwen2VLImageProcessorFast(size=size, **common)


def processor(model, max_pixels, slow=False):
    """The Qwen3-VL processor of the installed transformers; and its version."""
    import torch
    import transformers
    from transformers import PreTrainedTokenizerFast, Qwen2TokenizerFast
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    torch.set_num_threads(1)
    special = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    common = dict(tokenizer_file=str(model / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if int(transformers.__version__.split(".")[0]) >= 5:
        tokenizer = PreTrainedTokenizerFast(extra_special_tokens=special, **common)
    else:
        tokenizer = Qwen2TokenizerFast(additional_special_tokens=special, **common)
    video = Qwen3VLVideoProcessor(patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    return Qwen3VLProcessor(image_processor=image_processor(max_pixels, slow), tokenizer=tokenizer, video_processor=video,
                            chat_template=(model / "chat_template.jinja").read_text()), transformers.__version__


def parse(line, root):
    """(messages, [image path]) of one record."""
    messages = json.loads(line)["messages"]
    images = [str(root / p["image"]) for m in messages if isinstance(m["content"], list) for p in m["content"] if p["type"] == "image"]
    return messages, images


def samples(records):
    """Those of each record, again and again."""
    while True:
        with open(records, encoding="utf-8") as lines:
            for line in lines:
                yield parse(line, records.parent)


class Processor:
    """transformers, fast or slow: text and pixels."""

    def __init__(self, spec):
        self.process, self.version = processor(Path(spec["model"]), spec["max_pixels"], spec["contender"] == "slow")

    def sample(self, messages, images):
        text = self.process.apply_chat_template(messages, tokenize=False)
        return self.process(text=[text], images=images, return_tensors="pt")

    @staticmethod
    def shape(out):
        return list(out["pixel_values"].shape)

    @staticmethod
    def parts(out):
        return out["input_ids"][0], out["pixel_values"]


def pictures(spec):
    """torchvision alone; its module is not needed elsewhere."""
    from build.peer_torchvision import Torchvision

    return Torchvision(spec)


CONTENDERS = {"fast": Processor, "slow": Processor, "torchvision": pictures}


def main():
    spec = json.loads(sys.argv[1])
    contender = CONTENDERS[spec["contender"]](spec)
    source = samples(Path(spec["records"]))
    found = []
    for _ in range(spec["checked"]):
        out = contender.sample(*next(source))
        found.append(digests(*contender.parts(out)))
    shape, ids = contender.shape(out), contender.parts(out)[0]
    # All workers begin together once each is warm.
    print("ready", flush=True)
    while not os.path.exists(spec["go"]):
        time.sleep(0.005)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    wall, cpu, done, misshapen = time.perf_counter(), usage.ru_utime + usage.ru_stime, 0, 0
    while time.perf_counter() - wall < spec["seconds"]:
        out = contender.sample(*next(source))
        done += 1
        misshapen += contender.shape(out) != shape
    wall = time.perf_counter() - wall
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({
        "samples": done, "wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime - cpu, "version": contender.version,
        "digests": found, "misshapen": misshapen, "tokens": None if ids is None else len(ids),
        "text_tokens": None if ids is None else int((ids != IMAGE_PAD).sum()),
    }), flush=True)


if __name__ == "__main__":
    main()
