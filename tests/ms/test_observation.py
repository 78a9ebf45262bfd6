"""What a training cell tells about its last step, in both modes."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.networks import Mlp, Weight, classes, mlp_batch

from boost_ext import boost


class Slow(nn.Cell):
    """The forward and backward pass take far longer than anything else in the step."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.eye(700, dtype=np.float32)), name="w")

    def construct(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = ops.matmul(x, self.w)
        return x.mean()


def cell_of(net: nn.Cell, **kwargs) -> nn.Cell:
    sense = Tensor(4.0)
    return boost.BoostTrainOneStepWithLossScaleCell(net, nn.SGD(net.trainable_params(), 0.01), sense, **kwargs)


@pytest.mark.parametrize("compile", ["step", "network", "off"])
def test_a_plain_step(mode: int, compile: str) -> None:
    cell = cell_of(Weight(), compile=compile)
    before = cell.observe()
    assert (before["step"], before["overflow"], before["largest_gradient"]) == (0, False, None)
    cell(Tensor([3.0, -5.0]))
    seen = cell.observe()
    assert seen == {
        "step": 1,
        "loss_scale": 4.0,
        "overflow": False,
        "overflowed": [],
        "largest_gradient": 5.0,
        "gradient_norm": None,
        "frozen_share": 0.0,
        "freeze_index": None,
        "micro_batch": None,
        "line_search": None,
        "seconds": None,
    }


@pytest.mark.parametrize("compile", ["step", "network", "off"])
def test_an_overflow_has_a_name(mode: int, compile: str) -> None:
    cell = cell_of(Weight(), compile=compile)
    cell(Tensor([2.0, np.inf]))
    seen = cell.observe()
    assert seen["overflow"]
    assert seen["overflowed"] == [{"name": "w", "inf": 1, "nan": 0, "first_index": 1, "largest": 2.0}]
    cell(Tensor([2.0, 1.0]))
    assert not cell.observe()["overflow"]


@pytest.mark.parametrize("compile", ["step", "network"])
def test_the_slot_clock(mode: int, compile: str) -> None:
    cell = cell_of(Slow(), compile=compile)
    x = Tensor(np.ones((700, 700), np.float32))
    cell(x)
    assert cell.observe()["seconds"] is None
    cell.instrument()
    assert not cell.observe()["overflow"]
    for _ in range(3):
        cell(x)
    seconds = cell.observe()["seconds"]
    assert list(seconds) == ["source", "guard", "apply", "update_scale"]
    assert all(value >= 0 for value in seconds.values())
    assert seconds["source"] > 0.5 * sum(seconds.values())
    assert 1e-3 < seconds["source"] < 10
    cell.instrument(False)
    cell(x)
    assert cell.observe()["seconds"] is None
    assert cell.observe()["step"] == 5


def test_the_slot_clock_changes_no_result(mode: int) -> None:
    plain, timed = Mlp(), Mlp()
    optimizers = [nn.Momentum(n.trainable_params(), 0.1, 0.9) for n in (plain, timed)]
    cells = [boost.BoostTrainOneStepCell(classes(n), o) for n, o in zip((plain, timed), optimizers, strict=True)]
    cells[1].instrument()
    for i in range(4):
        for cell in cells:
            cell(*mlp_batch(i, 16))
    for a, b in zip(plain.trainable_params(), timed.trainable_params(), strict=True):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
