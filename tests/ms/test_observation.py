"""What a training cell tells about its last step, in both modes."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.monitored import quiet, steps
from tests.ms.networks import Mlp, Weight, classes, mlp_batch
from tests.ms.tiers import in_graph_mode, standard

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
@standard(lambda p: p.graph == (p.compile == "step"))
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
@standard(lambda p: p.graph == (p.compile == "step"))
def test_an_overflow_has_a_name(mode: int, compile: str) -> None:
    cell = cell_of(Weight(), compile=compile)
    cell(Tensor([2.0, np.inf]))
    seen = cell.observe()
    assert seen["overflow"]
    assert seen["overflowed"] == [{"name": "w", "inf": 1, "nan": 0, "first_index": 1, "largest": 2.0}]
    cell(Tensor([2.0, 1.0]))
    assert not cell.observe()["overflow"]


@pytest.mark.parametrize("compile", ["step", "network"])
@standard(lambda p: p.graph == (p.compile == "step"))
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


@in_graph_mode
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


class Outer(nn.Cell):
    """Around a training cell, as a data sink is: in GRAPH_MODE its graph makes the steps, and Python calls nothing."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.network(*inputs)


class Pair(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.a = Parameter(Tensor([1.0, 2.0, 3.0]), name="a")
        self.b = Parameter(Tensor([1.0]), name="b")

    def construct(self, x: Tensor) -> Tensor:
        return (self.a.sum() + self.b.sum()) * x


@pytest.mark.parametrize("freeze", [False, True])
@standard(lambda p: p.graph == p.freeze)
def test_steps_inside_another_graph(mode: int, freeze: bool, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = Pair()
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    if freeze:
        optimizer = boost.FreezeOpt(optimizer, [[net.a, net.b], [net.b]], [1, 0, 1])
    cell = boost.BoostTrainOneStepCell(net, optimizer)
    outer = Outer(cell)
    seen = []
    with quiet() as monitor:
        for x, step in [(2.0, outer), (np.inf, outer), (3.0, outer), (4.0, cell), (5.0, outer)]:
            outputs = step(Tensor(x, ms.float32))
            monitor.record(outer, outputs)
            s = cell.observe()
            names = [row["name"] for row in s["overflowed"]]
            assert s["overflow"] is bool(outputs[1].asnumpy())
            seen.append((s["step"], names, s["largest_gradient"], s["freeze_index"], s["frozen_share"]))
    assert [record.overflow for record in steps()] == [False, True, False, False, False]
    if freeze:  # a step that overflows does not move the schedule on
        assert seen == [
            (1, [], 2.0, 1, 0.75),
            (2, ["a", "b"], 0.0, 0, 0.0),
            (3, [], 3.0, 0, 0.0),
            (4, [], 4.0, 1, 0.75),
            (5, [], 5.0, 1, 0.75),
        ]
    else:
        made = [([], 2.0), (["a", "b"], 0.0), ([], 3.0), ([], 4.0), ([], 5.0)]
        assert seen == [(i, *found, None, 0.0) for i, found in enumerate(made, 1)]
    state = cell.state_dict()
    outer(Tensor(1.0))
    cell.load_state_dict(state)
    assert cell.observe()["step"] == 5


def test_a_pipeline_that_has_made_no_step_tells_nothing() -> None:
    """A graph that was compiled before instrument() goes on with the pipelines of then."""
    cell = cell_of(Weight())
    cell(Tensor([2.0, np.inf]))
    cell.instrument()
    seen = cell.observe()
    assert (seen["step"], seen["overflow"], seen["largest_gradient"], seen["seconds"]) == (1, None, None, None)


def test_the_flag_that_the_step_returned_is_recorded(tmp_path, monkeypatch) -> None:
    """Of all ranks: the gradients of this one may have been finite."""
    monkeypatch.chdir(tmp_path)
    cell = cell_of(Weight())
    loss, _, scale = cell(Tensor([1.0, 1.0]))
    with quiet() as monitor:
        monitor.record(cell, (loss, Tensor(True), scale))
    assert steps()[0].overflow
