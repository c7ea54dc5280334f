#!/usr/bin/env python3
"""Trains a very small Qwen3-VL with random weights from a cache, on CPUs: a whole training loop to copy from.

    stoker build --input DATA.jsonl --model MODEL --output CACHE
    torchrun --nproc-per-node 2 train_qwen3vl.py --cache CACHE --steps 20 --global-batch-size 4 --checkpoint run.pt

Killed at any time, the same command goes on after the last checkpoint, with any number of ranks, and trains on exactly
the samples that were left. The checkpoint lies on a disk that all nodes see. Needs torch and transformers 5.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

import stoker


def make_model(recipe: dict[str, Any], vocabulary: int, seed: int) -> Qwen3VLForConditionalGeneration:
    """A model of two layers for the tokens and patches of a cache's recipe; the same weights for the same seed."""
    torch.manual_seed(seed)
    image, special = recipe["image"], recipe["text"]["special"]
    if max(special.values()) >= vocabulary:
        raise SystemExit(f"error: the vocabulary is too small for the tokenizer: `{vocabulary}`\nhint: --vocabulary {max(special.values()) + 1} or more")
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": image["patch_size"],
            "temporal_patch_size": image["temporal_patch_size"],
            "spatial_merge_size": image["merge_size"],
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=special["image_pad"],
        video_token_id=special["video_pad"],
        vision_start_token_id=special["vision_start"],
    )
    config._attn_implementation = "eager"
    return Qwen3VLForConditionalGeneration(config)


def loss_sum(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """The summed loss of a micro-batch. Divided by the global batch's n_loss_tokens, gradients of ranks just add up."""
    # A batch without pictures carries empty tensors; the model wants none at all.
    pictures = {name: batch[name] if batch[name].numel() else None for name in ("pixel_values", "image_grid_thw")}
    # Without a mask and a cache the model takes the borders of packs from where the text's positions begin again.
    inputs = {name: batch.get(name) for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**inputs, **pictures, use_cache=False).logits[:, :-1].flatten(0, 1)
    labels = batch["labels"][:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")


def global_batches(reader: stoker.Reader, micro_batches: int) -> Iterator[list[stoker.Batch]]:
    """This rank's part of each optimiser step, epoch after epoch."""
    while True:
        batches = iter(reader)
        while step := list(itertools.islice(batches, micro_batches)):
            yield step


def train(options: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    recipe = stoker.inspect(options.cache)["recipe"]
    model = make_model(recipe, options.vocabulary, options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    reader = stoker.Reader(
        options.cache,
        global_batch_size=options.global_batch_size,
        micro_batch_size=options.micro_batch_size,
        seed=options.seed,
        pack=options.pack,
        placement=None if options.placement is None else json.loads(options.placement.read_text()),
        dtype="float32",
        sample_ids=True,
        tensors="torch",
        prefetch_bytes="64MiB",
    )
    done = 0
    found: list[Any] = [None] * world
    dist.all_gather_object(found, options.checkpoint.exists())
    if len(set(found)) > 1:
        raise SystemExit(f"error: not all ranks see the checkpoint `{options.checkpoint}`\nhint: put it on a disk that all nodes see")
    if all(found):
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        reader.load_state_dict(saved["reader"])
        done = saved["step"]
    micro_batches = options.global_batch_size // (options.micro_batch_size * world)
    for step, batches in enumerate(global_batches(reader, micro_batches), start=done + 1):
        if step > options.steps:
            break
        total = torch.zeros(())
        for batch in batches:
            loss = loss_sum(model, batch.as_torch()) / batch.n_loss_tokens
            loss.backward()
            total += loss.detach()
        for parameter in model.parameters():
            # A rank without pictures has no gradient of the vision tower.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        samples: list[Any] = [None] * world
        dist.all_gather_object(samples, [name for batch in batches for name in batch["sample_ids"] if name])
        if rank == 0:
            note(options, step, total.item(), sum(samples, []))
            if step % options.save_every == 0 or step == options.steps:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(options.checkpoint, {**state, "reader": reader.state_dict(), "step": step})
    reader.close()


def note(options: argparse.Namespace, step: int, loss: float, samples: list[str]) -> None:
    line = json.dumps({"step": step, "loss": loss, "samples": samples})
    print(line, flush=True)
    if options.history is not None:
        with open(options.history, "a", encoding="utf-8") as log:
            log.write(line + "\n")


def save(path: Path, state: dict[str, Any]) -> None:
    """Replaces the checkpoint: a kill leaves the old one or the new one."""
    written = path.with_suffix(".tmp")
    torch.save(state, written)
    os.replace(written, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--history", type=Path, help="gets one JSON line a step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=1)
    parser.add_argument("--global-batch-size", type=int, default=4)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--pack", help="train on the packs of this table, made by `stoker pack`; sizes count packs then")
    parser.add_argument("--placement", type=Path, help="a table of `stoker place`, if each node holds a share of the cache")
    parser.add_argument("--vocabulary", type=int, default=1280, help="at least the tokenizer's")
    parser.add_argument("--seed", type=int, default=0)
    # Small matrices: more threads only wait for each other, and one thread adds in one order.
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        train(parser.parse_args())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
