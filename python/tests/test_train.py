"""The example trains: killed and resumed it sees the same samples, and its losses are those of Hugging Face."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
Image = pytest.importorskip("PIL.Image")

import stoker  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "models" / "tiny"
EXAMPLE = ROOT / "python" / "examples" / "train_qwen3vl.py"
SIZE = {"shortest_edge": 1024, "longest_edge": 4096}
STEPS, SAMPLES = 12, 26

sys.path.insert(0, str(EXAMPLE.parent))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records with none, one or two pictures of odd sizes, some with an answer in two turns."""
    folder = tmp_path_factory.mktemp("source")
    random.seed(5)
    noise = np.random.default_rng(5)
    lines = []
    for number in range(SAMPLES):
        content: list[dict[str, str]] = []
        for picture in range(random.choice([0, 1, 1, 2])):
            name = f"{number}-{picture}.png"
            pixels = noise.integers(0, 256, (random.randint(20, 90), random.randint(20, 90), 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name)
            content.append({"type": "image", "image": name})
        content.append({"type": "text", "text": f"Count to {number}. " * random.randint(1, 4)})
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": f"One, two, {number}."}]
        if number % 3 == 0:
            messages += [{"role": "user", "content": "Again."}, {"role": "assistant", "content": f"{number}, yes."}]
        lines.append(json.dumps({"id": str(number), "messages": messages}))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def trained_cache(source: Path) -> Path:
    stoker.build(
        source / "train.jsonl", model=MODEL, output=source / "cache", min_pixels=SIZE["shortest_edge"],
        max_pixels=SIZE["longest_edge"], partitions=2, max_rejects=0, progress=False,
    )
    return source / "cache"


def start(cache: Path, folder: Path, ranks: int, steps: int = STEPS, pack: str | None = None) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), EXAMPLE]
    command += ["--cache", cache, "--checkpoint", folder / "run.pt", "--history", folder / "log.jsonl"]
    command += [] if pack is None else ["--pack", pack, "--global-batch-size", "2"]
    with (folder / "stderr.txt").open("a") as log:
        return subprocess.Popen([*command, "--steps", str(steps)], stdout=subprocess.DEVNULL, stderr=log)


def end(run: subprocess.Popen, folder: Path) -> None:
    assert run.wait(timeout=300) == 0, (folder / "stderr.txt").read_text()[-4000:]


def logged(folder: Path) -> list[dict[str, Any]]:
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def whole(trained_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The log of an uninterrupted run on one rank."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    end(start(trained_cache, folder, ranks=1), folder)
    log = logged(folder)
    assert [line["step"] for line in log] == list(range(1, STEPS + 1))
    return log


def test_losses_are_those_of_hugging_face(source: Path, trained_cache: Path, whole: list[dict[str, Any]]) -> None:
    """The same steps, fed by the processor from the records themselves: every loss is the same number."""
    from train_qwen3vl import loss_sum, make_model

    torch.set_num_threads(1)
    records = [json.loads(line) for line in (source / "train.jsonl").read_text().splitlines()]
    processor = hugging_face()
    model = make_model(stoker.inspect(trained_cache)["recipe"], 1280, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for line in whole:
        batches = [prepared(processor, records[int(name.rsplit(":", 1)[1]) - 1], source) for name in line["samples"]]
        learnt = sum(int((batch["labels"] != -100).sum()) for batch in batches)
        total = torch.zeros(())
        for batch in batches:
            loss = loss_sum(model, batch) / learnt
            loss.backward()
            total += loss.detach()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        assert line["loss"] == total.item(), f"step {line['step']}"
    assert whole[-1]["loss"] < whole[0]["loss"]


def hugging_face() -> Any:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    common = {key: value for key, value in json.loads((MODEL / "preprocessor_config.json").read_text()).items()
              if key in ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std")}
    added = json.loads((MODEL / "tokenizer.json").read_text())["added_tokens"]
    special = [token["content"] for token in added if token["special"] and token["content"] != "<|endoftext|>"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(MODEL / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>",
        extra_special_tokens=special,
    )
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=dict(SIZE), **common), tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**common), chat_template=(MODEL / "chat_template.jinja").read_text(),
    )


def prepared(processor: Any, record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A record as the processor makes it, with labels by the place of the answers and positions by the model class."""
    messages = json.loads(json.dumps(record["messages"]))
    for message in messages:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        for part in message["content"]:
            if part["type"] == "image":
                part["image"] = str(folder / part["image"])
    made = processor.apply_chat_template(messages, tokenize=True, return_dict=True, return_tensors="pt")
    ids = made["input_ids"]
    grids = made.get("image_grid_thw", torch.empty(0, 3, dtype=torch.int64))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": answers(processor.tokenizer, ids),
        "position_ids": positions(processor.tokenizer, ids[0].tolist(), grids.tolist()),
        "pixel_values": made.get("pixel_values", torch.empty(0, 1536)),
        "image_grid_thw": grids,
    }


def answers(tokenizer: Any, ids: torch.Tensor) -> torch.Tensor:
    """What the assistant says, to the end token and the newline after it."""
    header = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end_token = tokenizer.convert_tokens_to_ids("<|im_end|>")
    row, labels = ids[0].tolist(), torch.full_like(ids, -100)
    for start_at in range(len(row)):
        if row[start_at : start_at + len(header)] == header:
            first = start_at + len(header)
            last = row.index(end_token, first) + 1
            labels[0, first : last + 1] = ids[0, first : last + 1]
    return labels


def positions(tokenizer: Any, row: list[int], grids: list[list[int]]) -> torch.Tensor:
    """Time, height and width: text counts on in all three, a picture spreads over its merged grid."""
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    found, at, place = [], 0, 0
    while at < len(row):
        if row[at] != pad:
            found.append([place] * 3)
            at, place = at + 1, place + 1
            continue
        _, height, width = grids.pop(0)
        height, width = height // 2, width // 2
        found += [[place, place + y, place + x] for y in range(height) for x in range(width)]
        at, place = at + height * width, place + max(height, width)
    return torch.tensor(found).T.reshape(3, 1, len(row))


@pytest.mark.parametrize("ranks_after", [2, 1])
def test_killed_and_resumed_it_trains_on_the_same_samples(
    trained_cache: Path, tmp_path: Path, whole: list[dict[str, Any]], ranks_after: int
) -> None:
    folder = tmp_path / "run"
    run = start(trained_cache, folder, ranks=2, steps=1000)
    kill_after = random.Random(ranks_after).randint(2, STEPS // 2)
    deadline = time.monotonic() + 300
    while len(logged_safely(folder)) < kill_after and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert run.poll() is None, (folder / "stderr.txt").read_text()[-4000:]
    # The launcher first, so that it does not end the ranks more gently.
    ranks = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    for pid in (run.pid, *map(int, ranks)):
        os.kill(pid, signal.SIGKILL)
    run.wait()
    killed = logged(folder)[-1]["step"]
    steps = max(STEPS, killed + 2)
    end(start(trained_cache, folder, ranks_after, steps=steps), folder)
    by_step: dict[int, list[str]] = {}
    for line in logged(folder):
        # A step after the last checkpoint is done again, with the same samples.
        assert by_step.setdefault(line["step"], sorted(line["samples"])) == sorted(line["samples"])
    assert list(by_step) == list(range(1, steps + 1))
    for line in whole:
        assert by_step[line["step"]] == sorted(line["samples"])


def test_it_trains_on_packs(trained_cache: Path, tmp_path: Path) -> None:
    """On both ranks, resumed by one: every sample of an epoch that gives equal shares comes once."""
    cache = tmp_path / "cache"
    shutil.copytree(trained_cache, cache)
    command = [sys.executable, "-m", "stoker", "pack", cache, "--max-tokens", "192", "--name", "small"]
    subprocess.run(command, check=True, capture_output=True)
    with stoker.Reader(cache, pack="small", global_batch_size=2, micro_batch_size=1, sample_ids=True) as reader:
        epoch = [name for batch in reader for name in batch["sample_ids"] if name]
        steps = len(reader) // 2
    assert steps > 2 and len(set(epoch)) == len(epoch)
    end(start(cache, tmp_path / "run", 2, steps - 1, "small"), tmp_path / "run")
    end(start(cache, tmp_path / "run", 1, steps, "small"), tmp_path / "run")
    log = logged(tmp_path / "run")
    assert [line["step"] for line in log] == list(range(1, steps + 1))
    assert sorted(sum((line["samples"] for line in log), [])) == sorted(epoch)


def logged_safely(folder: Path) -> list[str]:
    """Lines so far; the last one may be half written."""
    path = folder / "log.jsonl"
    return path.read_text().splitlines() if path.exists() else []
