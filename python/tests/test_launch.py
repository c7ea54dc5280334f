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
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, words in (("stoker", f'exec {sys.executable} -m stoker "$@"'), ("torchrun", 'echo "$@"')):
        (commands / name).write_text(f"#!/bin/sh\n{words}\n")
        (commands / name).chmod(0o755)
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


def test_the_ray_script_takes_the_options_of_a_build() -> None:
    script = {"__name__": "launch"}
    exec(compile((LAUNCH / "ray").read_text(), "ray", "exec"), script)
    words = "--max-tokens 8192 --restart --split val=1% test=2% --seed=-1".split()
    assert script["build_options"](words) == {"max_tokens": "8192", "restart": True, "split": ["val=1%", "test=2%"], "seed": "-1"}
    with pytest.raises(stoker.errors.ConfigError, match="not an option: `x`"):
        script["build_options"](["x"])
