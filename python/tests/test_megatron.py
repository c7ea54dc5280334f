"""The adapter under megatron.core's own parallel state, in four processes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core", exc_type=ImportError)

import stoker  # noqa: E402
from stoker.megatron import Batches, convert  # noqa: E402


def test_tensor_parallel_ranks_get_the_same_and_data_parallel_ranks_their_share(cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "rank"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    script = Path(__file__).parent / "megatron_ranks.py"
    ended = subprocess.run([*command, script, cache, out], capture_output=True, text=True, timeout=540)
    assert ended.returncode == 0, ended.stderr[-4000:]
    ranks = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(4)]
    assert [rank["data_rank"] for rank in ranks] == [0, 0, 1, 1]
    assert ranks[0] == ranks[1] and ranks[2] == ranks[3]
    for rank, layout in itertools.product(range(2), ("padded", "packed")):
        options = {"global_batch_size": 4, "micro_batch_size": 1, "layout": layout, "sample_ids": True}
        with stoker.Reader(cache, rank=rank, world_size=2, multiple_of=4, **options) as reader:
            batches = itertools.chain(reader, reader)
            for batch, got in zip(batches, ranks[2 * rank][layout]):
                made = convert(batch.as_torch(), 4)
                assert got["tokens"] == made["tokens"].tolist() and len(got["tokens"][0]) % 4 == 0
                assert got["labels"] == made["labels"].tolist()
                assert got["loss_mask"] == made["loss_mask"].tolist()
                assert got["position_ids"] == made["position_ids"].tolist()
                assert got["sample_ids"] == made["sample_ids"]
                assert got["attention_mask"] is None
                assert sum(got["loss_mask"][0]) <= got["n_loss_tokens"]


def test_wrong_options_are_refused(cache: Path) -> None:
    with pytest.raises(stoker.errors.ConfigError, match="every or broadcast"):
        Batches(cache, tensor_parallel="some", global_batch_size=1, micro_batch_size=1)
