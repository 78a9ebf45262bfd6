"""The scripts of examples/, each in a process and a folder of its own: what they print is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import boost_ext

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "numpy_ops.ipynb"


@dataclass(frozen=True)
class Example:
    """What a script prints, as a regular expression, and what holds for the numbers in its groups."""

    prints: str
    holds: Callable[..., bool] | None = None
    needs: str = "mindspore"


WEIGHTS = r"checksum of the weights"
SCRIPTS = {
    "numpy_ops": Example(
        r"step 100 was skipped: tensor 0: 1 inf, 0 nan, first at 197\n"
        r"(\S+) of (\S+) steps made, (\S+) of them clipped, test accuracy (\S+)\n",
        lambda made, tried, clipped, accuracy: made == tried - 1 and clipped > 0 and accuracy > 0.93,
        needs="sklearn",
    ),
    "own_loop": Example(
        r"boost_ext, clipped: (\S+) of (\S+) steps were clipped\n"
        r"largest difference of a weight between MindSpore and boost_ext: (\S+)\n",
        lambda clipped, steps, difference: 0 < clipped < steps and difference < 1e-4,
    ),
    "model_o1": Example(
        r"\n(\S+) of (\S+) steps trained the head alone: (\S+)% of the weights\n"
        r"test accuracy after each epoch: .*, (\S+)\n",
        lambda frozen, steps, share, accuracy: 0.2 < frozen / steps < 0.4 and share < 50 and accuracy > 0.93,
    ),
    "resume": Example(
        r"it was complete: False\nTrainingState: resumed at step 120 of 672(?s:.*)\n"
        r"weights and state of Adam have the same bits as without the kill: True\n"
    ),
    "dim_reduce": Example(
        r"Adam: loss \S+ -> (\S+) in 30 steps, \S+ in 200\n"
        r"DimReduce: loss \S+ -> (\S+) in 30 steps,\nin 16 of \d+ dimensions; the line search accepted (\S+) steps\n",
        lambda adam, reduced, accepted: reduced < adam and accepted > 25,
    ),
    "moving_average": Example(
        r"mean of the epochs: last weights (\S+), loss (\S+); averages (\S+), loss (\S+)\n"
        r"the last weights are back: True",
        lambda accuracy, loss, averaged, of_averages: averaged > max(accuracy, 0.92) and of_averages < 0.8 * loss,
    ),
    "pytorch_loop": Example(
        r"(\S+) steps, (\S+) of them clipped, test accuracy (\S+)\n"
        r"largest difference of a weight to PyTorch's own Adam: (\S+)\n"
        r"with the state of large tensors in 8 bits: test accuracy (\S+)\n",
        lambda steps, clipped, accuracy, difference, narrow: (
            0 < clipped <= steps and min(accuracy, narrow) > 0.93 and difference < 1e-4
        ),
        needs="torch",
    ),
    "two_ranks": Example(
        rf"rank 0, mean: test accuracy (?:0\.9\d+|1.000), {WEIGHTS} (\w+)\n"
        rf"rank 0, AdaSum: test accuracy (?:0\.9\d+|1.000), {WEIGHTS} (?!\1)(\w+)\n"
        rf"rank 1, mean: .* {WEIGHTS} \1\nrank 1, AdaSum: .* {WEIGHTS} \2\n"
    ),
    "own_step": Example(
        r"(\S+) of (\S+) steps skipped; loss scale 2\^24 -> 2\^(\S+)\nloss \S+ -> \S+, test accuracy (\S+)\n",
        lambda skipped, steps, scale, accuracy: 5 < skipped < steps / 2 and scale < 20 and accuracy > 0.9,
    ),
    "loss_scale": Example(
        r"(\S+) of (\S+) steps overflowed and were skipped: .*\n"
        r"loss scale: first 2\^24, lowest 2\^(\S+), last 2\^(\S+)\n"
        r"first to overflow: \S*(?:weight|bias)\ntest accuracy (\S+); page: runs/loss_scale\.html\n",
        lambda skipped, steps, low, last, accuracy: 5 < skipped < steps / 2 and low < 20 > last and accuracy > 0.9,
    ),
}


def test_all_are_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)
    page = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"^\| \[(\w+)\.py\]", page, re.MULTILINE)) == set(SCRIPTS)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if e.needs == "mindspore" else n for n, e in SCRIPTS.items()]
)
def test_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip(SCRIPTS[name].needs)
    environment = {**os.environ, "GLOG_v": "3", "PYTHONPATH": str(Path(boost_ext.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.search(SCRIPTS[name].prints, done.stdout)
    assert found, done.stdout
    if holds := SCRIPTS[name].holds:
        assert holds(*map(float, found.groups())), done.stdout


def cells(script: str) -> Iterator[tuple[str, str]]:
    """Of a script in the percent format: kind and source."""
    for kind, source in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n)*)", script, re.MULTILINE):
        yield ("markdown", source.strip().strip('"').strip()) if "markdown" in kind else ("code", source.strip())


def test_the_notebook_is_its_script() -> None:
    """`make notebook` makes it."""
    notebook = json.loads(NOTEBOOK.read_text())
    made = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert made == list(cells(NOTEBOOK.with_suffix(".py").read_text()))
    assert len(made) == 6
