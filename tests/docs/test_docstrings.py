"""Every public name has an example in its docstring, and the examples run: see docstrings.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.docs import docstrings

import boost_ext

NEEDED = {
    "boost_ext.cuda.DeviceArray": "an array on a GPU",
    "boost_ext.cuda.DeviceReport": "an array on a GPU",
    "boost_ext.distributed.init_ranks": "two processes: docs/distributed.md, which test_pages.py runs",
}
"""The names without an example, and what one would need."""

UNINSTALLED = {"boost_ext.writers", "boost_ext.torch"}
"""Modules whose examples need TensorBoard, MLflow and Weights & Biases; and PyTorch: tests/pytorch runs them."""

WITH_MINDSPORE = [
    *(f"boost_ext.{m}" for m in ("amp", "boost", "callbacks", "checkpoint", "distributed", "model", "nn", "optim")),
    "boost_ext.boost.grad_accumulation",
    "boost_ext.boost.less_batch_normalization",
]


def test_the_core(tmp_path: Path) -> None:
    """In a process that cannot import MindSpore."""
    log = tmp_path / "log"
    log.touch()
    script = (
        "import sys; sys.modules['mindspore'] = None\n"
        f"from tests.docs import docstrings; docstrings.run({str(log)!r}, docstrings.CORE, {list(NEEDED)})"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, timeout=120, check=False)
    assert done.returncode == 0, log.read_text()


def test_with_mindspore(in_a_fork: Callable) -> None:
    code, output = in_a_fork(docstrings.run, WITH_MINDSPORE, list(NEEDED))
    assert code == 0, output[-8000:]


def test_no_public_module_is_left_out() -> None:
    modules = {f"boost_ext.{name}" for name in dir(boost_ext)} - {f"boost_ext.{name}" for name in boost_ext.__all__}
    assert modules - {"boost_ext.Model", *UNINSTALLED} <= {*docstrings.CORE, *WITH_MINDSPORE}
    folder = Path(boost_ext.__file__).parent / "boost"
    names = {name for name, _ in docstrings.public([*docstrings.CORE, *WITH_MINDSPORE])}
    every = {name for name, _ in docstrings.public([f"boost_ext.boost.{p.stem}" for p in folder.glob("[a-z]*.py")])}
    assert {name.rpartition(".")[2] for name in every} <= {name.rpartition(".")[2] for name in names}
