"""The package as such: its names, its stubs, its errors, and that nobody needs torch."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker import _stoker, errors

PACKAGE = Path(stoker.__file__).parent


def test_nothing_imports_torch_or_transformers() -> None:
    script = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import stoker; stoker.Reader"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_all_names_are_there_and_documented() -> None:
    for name in stoker.__all__:
        value = getattr(stoker, name)
        assert name == "__version__" or inspect.getdoc(value), name
    assert (PACKAGE / "py.typed").exists()


def test_the_stub_is_the_native_module() -> None:
    """Names, methods and parameters of `_stoker.pyi` against the module itself."""
    stub = ast.parse((PACKAGE / "_stoker.pyi").read_text())
    assert _public(stub.body) == {name for name in dir(_stoker) if not name.startswith("_")} | {"__version__"}
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            _same_parameters(node, getattr(_stoker, node.name), skip=0)
        if isinstance(node, ast.ClassDef):
            native = getattr(_stoker, node.name)
            special = {"__init__", "__array_interface__"}
            assert _public(node.body) - special == {name for name in vars(native) if not name.startswith("_")}
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and not method.decorator_list and method.name != "__init__":
                    _same_parameters(method, getattr(native, method.name), skip=1)


def _public(body: list[ast.stmt]) -> set[str]:
    names = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return names | {node.target.id for node in body if isinstance(node, ast.AnnAssign)}


def _same_parameters(node: ast.FunctionDef, native: object, skip: int) -> None:
    stated = [argument.arg for argument in node.args.args]
    assert list(inspect.signature(native).parameters)[skip:] == stated[skip:], node.name


def test_errors_are_one_tree() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(classes) > 15
    for kind in classes:
        assert issubclass(kind, stoker.StokerError) and kind.__doc__
        error = kind("what", "do this")
        assert (error.message, error.hint, str(error)) == ("what", "do this", "what\nhint: do this")
        assert str(kind("what")) == "what"


def test_the_command_is_the_package(tmp_path: Path) -> None:
    def code(*args: str) -> int:
        return subprocess.run([sys.executable, "-m", "stoker", *args], capture_output=True, timeout=60).returncode

    assert code("--version") == 0
    assert code("verify", str(tmp_path)) == 2
    assert code("no-such-command") == 2


def test_state_of_half_a_world_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="belong together"):
        stoker.Reader("none", global_batch_size=1, micro_batch_size=1, rank=0)
    with pytest.raises(errors.ConfigError, match="auto, torch or numpy"):
        stoker.Reader("none", global_batch_size=1, micro_batch_size=1, tensors="jax")
