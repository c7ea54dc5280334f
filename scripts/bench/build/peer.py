"""One worker of the peer: transformers' fast processor and tokenizer over a record file, in this interpreter.

usage: python peer.py MODEL_DIR RECORDS MAX_PIXELS|- SECONDS GO_FILE. Prints one JSON line: samples, wall and CPU seconds
after warming up. It computes what training needs of a sample and keeps nothing: no labels, no file is written, which
favours the peer. One sample a call is its best case: batches of 4 and 8 took 1.1 to 2 times the CPU time a sample.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"


def processor(model, max_pixels):
    """The Qwen3-VL processor with the fast (torchvision) image processor; and the major version."""
    import torch
    import transformers
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    torch.set_num_threads(1)
    major = int(transformers.__version__.split(".")[0])
    common = dict(patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    size = {"shortest_edge": 65536, "longest_edge": max_pixels or 16777216}
    if major >= 5:
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor as Images
    else:
        from transformers import Qwen2VLImageProcessorFast as Images
    special = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    from transformers import PreTrainedTokenizerFast, Qwen2TokenizerFast

    common_tokens = dict(tokenizer_file=str(model / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if major >= 5:
        tokenizer = PreTrainedTokenizerFast(extra_special_tokens=special, **common_tokens)
    else:
        tokenizer = Qwen2TokenizerFast(additional_special_tokens=special, **common_tokens)
    return Qwen3VLProcessor(
        image_processor=Images(size=size, **common), tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**common), chat_template=(model / "chat_template.jinja").read_text(),
    ), transformers.__version__


def samples(records):
    """(messages, [image path]) of each record, again and again."""
    root = records.parent
    while True:
        with open(records, encoding="utf-8") as lines:
            for line in lines:
                messages = json.loads(line)["messages"]
                images = [str(root / p["image"]) for m in messages if isinstance(m["content"], list)
                          for p in m["content"] if p["type"] == "image"]
                yield messages, images


def main():
    model, records, max_pixels, seconds, go = sys.argv[1:6]
    process, version = processor(Path(model), None if max_pixels == "-" else int(max_pixels))
    source = samples(Path(records))

    def one():
        messages, images = next(source)
        text = process.apply_chat_template(messages, tokenize=False)
        return process(text=[text], images=images, return_tensors="pt")

    for _ in range(3):
        out = one()
    # All workers begin together once each is warm.
    print("ready", flush=True)
    while not os.path.exists(go):
        time.sleep(0.005)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    wall, cpu, done = time.perf_counter(), usage.ru_utime + usage.ru_stime, 0
    while time.perf_counter() - wall < float(seconds):
        out = one()
        done += 1
    wall = time.perf_counter() - wall
    usage = resource.getrusage(resource.RUSAGE_SELF)
    ids = out["input_ids"][0].tolist()
    print(json.dumps({
        "samples": done, "wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime - cpu, "transformers": version,
        "tokens": len(ids), "text_tokens": sum(i != 151655 for i in ids),
        "grid_thw": out["image_grid_thw"][0].tolist(),
    }), flush=True)


if __name__ == "__main__":
    main()
