"""freeze_cell: a step of the training cell for each group."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from tests.ms.networks import Mlp, Watched, Weight, classes, layers, mlp_batch
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import boost

GRAD = ops.GradOperation(get_by_list=True, sens_param=True)


def weights(net: nn.Cell) -> list[np.ndarray]:
    return [p.asnumpy().copy() for p in net.trainable_params()]


@pytest.mark.parametrize("accumulate", [1, 2])
@standard(lambda p: p.graph == (p.accumulate == 2))
def test_freeze_cell(mode: int, accumulate: int) -> None:
    """Also with accumulation, where mindspore.boost raises AttributeError."""
    net = Mlp()
    optimizer = boost.FreezeOpt(nn.Momentum(net.trainable_params(), 0.1, 0.9), layers(net))
    cells = boost.freeze_cell(False, classes(net), optimizer, 1.0, GRAD, accumulate > 1, None, None, accumulate)
    assert len(cells) == 3
    for i, cell in enumerate(cells):
        for k in range(accumulate):
            before = weights(net)
            assert np.isfinite(cell(*mlp_batch(k, 16)).asnumpy())
            moved = [bool(np.any(a != b)) for a, b in zip(before, weights(net), strict=True)]
            expected = [False] * (2 * i) + [True] * (6 - 2 * i)
            assert moved == (expected if k == accumulate - 1 else [False] * 6)


class Normed(nn.Cell):
    """A batch norm before the first trained layer: its statistics count the forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.BatchNorm1d(6, momentum=0.5), Mlp()

    def construct(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(x))


@in_graph_mode
def test_freeze_cell_is_a_step_of_the_training_cell(mode: int) -> None:
    """One forward and one backward pass: the same statistics and weights, to the bit."""
    nets = [Normed(), Normed()]
    freezes = [
        boost.FreezeOpt(nn.Momentum(n.trainable_params(), 0.1, 0.9, loss_scale=8.0), layers(n), [1]) for n in nets
    ]
    cell = boost.freeze_cell(False, classes(nets[0]), freezes[0], 8.0, GRAD, False)[1].set_train()
    reference = boost.BoostTrainOneStepCell(classes(nets[1]), freezes[1], 8.0).set_train()
    loss, expected = cell(*mlp_batch(0, 16)), reference(*mlp_batch(0, 16))[0]
    assert loss.asnumpy() == expected.asnumpy()
    assert np.any(nets[0].norm.moving_mean.asnumpy())
    for ours, theirs in zip(nets[0].get_parameters(), nets[1].get_parameters(), strict=True):
        np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy(), err_msg=ours.name)


def test_freeze_cell_runs_one_pass() -> None:
    """Counted eagerly, where Python sees each op."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = Watched()
    freeze = boost.FreezeOpt(nn.Momentum(net.trainable_params(), 0.1, 0.9), layers(net))
    cells = boost.freeze_cell(False, classes(net), freeze, 1.0, GRAD, False, compile="off")
    forward: list[int] = []
    net.register_forward_pre_hook(lambda *_: forward.append(1))
    counts = []
    for cell in cells:
        cell(*mlp_batch(0, 16))
        counts.append((len(forward), net.after_first.backward_passes, net.after_second.backward_passes))
    assert counts == [(1, 1, 1), (2, 1, 2), (3, 1, 2)]


@pytest.mark.parametrize("accumulate", [1, 2])
@standard(lambda p: p.graph == (p.accumulate == 1))
def test_freeze_cell_drops_gradients_with_inf(mode: int, accumulate: int) -> None:
    """By the rule of docs/gradient_accumulation.md: what overflows counts for nothing."""
    net = Weight()
    freeze = boost.FreezeOpt(nn.SGD(net.trainable_params(), 1.0))
    (cell,) = boost.freeze_cell(False, net, freeze, 1.0, GRAD, accumulate > 1, max_accumulation_step=accumulate)
    for x in ([np.inf, 2.0], [1.0, 2.0], [np.nan, 0.0]):
        cell(Tensor(x, ms.float32))
    assert freeze.position.asnumpy() == (accumulate == 1)
    if accumulate > 1:
        np.testing.assert_array_equal(net.w.asnumpy(), [1.0, 2.0])
        cell(Tensor([3.0, 4.0]))
    np.testing.assert_array_equal(net.w.asnumpy(), [0.0, 0.0] if accumulate == 1 else [-1.0, -1.0])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sens": "1"}, TypeError, "freeze_cell: sens must be a number, got str"),
        ({"sens": 0}, ValueError, "freeze_cell: sens must be from .* got 0"),
        ({"grad": ops.GradOperation(get_by_list=True)}, ValueError, "freeze_cell: grad must have get_by_list and sens"),
        ({"grad": None}, TypeError, "freeze_cell: grad must be a GradOperation, got NoneType"),
        ({"compile": "all"}, ValueError, "freeze_cell: compile must be 'step', 'network' or 'off', got 'all'"),
    ],
)
def test_wrong_arguments_of_freeze_cell(change: dict, error: type[Exception], message: str) -> None:
    net = Weight()
    arguments = {"sens": 1.0, "grad": GRAD, "use_grad_accumulation": False}
    with pytest.raises(error, match=message):
        boost.freeze_cell(False, net, nn.SGD(net.trainable_params(), 1.0), **(arguments | change))
