"""What the README and the introduction to the training step show runs."""

import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from tests.ms.tiers import in_graph_mode, in_pynative_mode

from boost_ext import report as run_report

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_ops() -> None:
    names: dict = {}
    exec(BLOCKS[0], names)
    assert not names["report"]
    assert [t.shape for t in names["total"]] == [g.shape for g in names["grads"]]
    again = names["ops"].pca_project(names["P"], names["back"][0])
    np.testing.assert_allclose(again, names["coordinates"], atol=1e-4)


@in_pynative_mode
@pytest.mark.usefixtures("mode")
def test_the_cells() -> None:
    names: dict = {}
    exec(BLOCKS[1], names)
    assert np.isfinite(names["loss"].asnumpy())
    assert names["loss_scale"].asnumpy() == 2**16
    assert names["overflow"].dtype == ms.bool_


@in_graph_mode
@pytest.mark.usefixtures("mode")
def test_the_optimizers() -> None:
    names: dict = {}
    exec(BLOCKS[1], names)
    exec(BLOCKS[2], names)
    assert np.isfinite(names["loss"].asnumpy())
    assert names["step"].grad_norm.asnumpy() > 0


@in_graph_mode
@pytest.mark.usefixtures("mode")
def test_the_levels() -> None:
    names: dict = {}
    exec(BLOCKS[1], names)
    exec(BLOCKS[3], names)
    plan = names["model"].plan
    assert plan.applies("grad_centralization")
    assert plan.applies("grad_freeze")
    assert Path("run.jsonl").stat().st_size > 0


def test_the_levels_twice() -> None:
    """As a script that is run again, in the same directory."""
    for _ in range(2):
        names: dict = {}
        exec(BLOCKS[1], names)
        exec(BLOCKS[3], names)
    assert [len(run_report.read(path)) for path in ("run.1.jsonl", "run.jsonl")] == [4, 4]


def test_there_are_four_blocks() -> None:
    assert len(BLOCKS) == 4


@pytest.mark.usefixtures("mode")
def test_the_first_example_of_the_step(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "step.md").read_text(), re.DOTALL)[0]
    names: dict = {}
    exec(example, names)
    assert names["loss"].asnumpy() < 0.5
    assert not names["overflow"].asnumpy()
    assert names["loss_scale"].asnumpy() == 1
    assert "largest_gradient" in capsys.readouterr().out
