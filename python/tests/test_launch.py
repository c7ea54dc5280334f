"""The launchers that people copy: the manifest against Kubernetes' schemas, and the commands in it with folders for nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stoker
from conftest import MODEL, ROOT, SOURCE

LAUNCH = ROOT / "scripts" / "launch"
VERSIONS = ("1.29", "1.33", "1.37")


def documents() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((LAUNCH / "k8s.yaml").read_text()))


def shims(tmp_path: Path, words: dict[str, str]) -> Path:
    """A folder with commands for a PATH: `stoker`, and scripts of these words."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, line in {"stoker": f'exec {sys.executable} -m stoker "$@"', **words}.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    return commands


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifest_has_kubernetes_schema(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    kinds = []
    for document in documents():
        kinds.append(document["kind"])
        validate.validate(document, version, strict=True)
    assert kinds == ["ConfigMap", "Job", "Job"]
    document["spec"]["template"]["spec"]["hostNetwrok"] = True
    with pytest.raises(validate.ValidationError):
        validate.validate(document, version, strict=True)


def test_the_commands_of_the_manifest_build_commit_and_train(tmp_path: Path) -> None:
    settings, build, train = documents()
    nodes = int(settings["data"]["NODES"])
    assert {job["spec"]["completions"] for job in (build, train)} == {nodes}
    commands = shims(tmp_path, {"torchrun": 'echo "$@"'})
    given = {
        **settings["data"], "INPUT": str(SOURCE), "MODEL": str(MODEL), "SHARED": str(tmp_path / "shared"),
        "OPTIONS": "--max-rejects 50% --min-pixels 1024 --max-pixels 4096 --partitions 4",
    }

    def run(job: dict[str, Any], kind: str, node: int, index: int) -> subprocess.CompletedProcess:
        (container,) = job["spec"]["template"]["spec"][kind]
        environment = {
            **os.environ, **given, "CACHE": str(tmp_path / f"node{node}" / "cache"), "HOST": f"10.0.0.{node}",
            "JOB_COMPLETION_INDEX": str(index), "PATH": f"{commands}:{os.environ['PATH']}",
        }
        return subprocess.run(
            [*container["command"], *container["args"]], env=environment, capture_output=True, text=True, timeout=120
        )

    # The pods of the build are on nodes of other numbers than theirs; made again, one changes nothing.
    for index in (*range(nodes), 1):
        ended = run(build, "containers", (index + 1) % nodes, index)
        assert ended.returncode == 0, ended.stderr
    late = run(build, "containers", 1, 3)
    assert late.returncode == 1 and "another part is on this node: 10.0.0.1" in late.stderr
    for node in range(nodes):
        ended = run(train, "initContainers", node, 0)
        assert ended.returncode == 0, ended.stderr
        rank = (node - 1) % nodes
        checked = stoker.verify(tmp_path / f"node{node}" / "cache", deep=True, progress=False)
        assert checked["sound"] and checked["not_held"] == [other for other in range(4) if other != rank]
        words = run(train, "containers", node, 0).stdout.split()
        assert words[words.index("--node-rank") + 1] == str(rank)
        assert words[words.index("--master-addr") + 1] == "10.0.0.1"
        assert (tmp_path / f"node{node}" / "cache.placement.json").read_text() == "[[0],[1],[2],[3]]\n"


def test_the_slurm_script_builds_commits_and_trains(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    commands = shims(tmp_path, {
        "srun": 'exec "$@"', "scontrol": "printf 'n0\\nn1\\n'", "torchrun": 'echo "$@"',
        "sbatch": f'echo "$@" >>{jobs}; wc -l <{jobs}',
    })
    given = {
        "nodes": "n0 n1", "input": str(SOURCE), "model": str(MODEL), "shared": str(tmp_path / "shared"), "cpus": "1", "gpus": "2",
        "options": "--max-rejects 50% --min-pixels 1024 --max-pixels 4096 --partitions 4", "train": "train.py",
        "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[0-1]",
    }

    def run(node: int, *words: str) -> str:
        environment = {
            **os.environ, **given, "cache": str(tmp_path / f"node{node}" / "cache"), "SLURM_NODEID": str(node),
            "PATH": f"{commands}:{os.environ['PATH']}",
        }
        script = ["bash", str(LAUNCH / "slurm.sbatch"), *words]
        ended = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run(0)
    asked = [line.split(str(LAUNCH / "slurm.sbatch")) for line in jobs.read_text().splitlines()]
    assert [words.split() for _, words in asked] == [["build", "0"], ["build", "1"], ["commit"], ["train"]]
    assert "--nodelist=n1" in asked[1][0] and "afterok:1:2" in asked[2][0] and "afterok:3" in asked[3][0]
    for node in range(2):
        run(node, "build", str(node))
    for node in range(2):
        run(node, "commit")
        checked = stoker.verify(tmp_path / f"node{node}" / "cache", deep=True, progress=False)
        assert checked["sound"] and checked["not_held"] == [1 - node, 3 - node]
        words = run(node, "train").split()
        assert words[words.index("--node-rank") + 1] == str(node)
        assert words[words.index("--master-addr") + 1] == "n0"
        placement = Path(words[words.index("--placement") + 1])
        assert placement.read_text() == "[[0,2],[1,3]]\n"


def test_the_ray_script_takes_the_options_of_a_build() -> None:
    script = {"__name__": "launch"}
    exec(compile((LAUNCH / "ray").read_text(), "ray", "exec"), script)
    words = "--max-tokens 8192 --restart --split val=1% test=2% --seed=-1 --split=more=3%".split()
    splits = ["val=1%", "test=2%", "more=3%"]
    assert script["build_options"](words) == {"max_tokens": "8192", "restart": True, "split": splits, "seed": "-1"}
    with pytest.raises(stoker.errors.ConfigError, match="not an option: `x`"):
        script["build_options"](["x"])
