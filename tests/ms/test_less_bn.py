"""LessBN rewrites the network itself, in both modes."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import boost, nn
from residual_networks import INNER, Basic, Bottleneck, ResNet, batch, fill, with_loss
from tests.ms.tiers import in_graph_mode, in_pynative_mode, standard

from boost_ext.ms.step.cells import BoostTrainOneStepCell
from boost_ext.ms.surgery import less_bn
from boost_ext.ms.surgery.less_bn import LessBN, LessBNReport, RemovedBatchNorm, remove_batch_norms

BLOCKS = pytest.mark.parametrize("block", [Basic, Bottleneck])


def loss_and_gradients(network: nn.Cell) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    parameters = ms.ParameterTuple(network.trainable_params())
    loss, grads = ms.value_and_grad(network.set_train(), None, parameters)(*batch())
    return loss.asnumpy(), {p.name: g.asnumpy() for p, g in zip(parameters, grads, strict=True)}


@BLOCKS
@standard(lambda p: p.graph == (p.block is Basic))
def test_equals_the_network_written_without_these_batch_norms(mode: int, block: type[nn.Cell]) -> None:
    written = fill(ResNet(block, inner=False))
    rewritten = ResNet(block)
    cell = LessBN(with_loss(rewritten))
    fill(rewritten)
    loss, grads = loss_and_gradients(cell)
    expected, expected_grads = loss_and_gradients(with_loss(written))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert grads.keys() == expected_grads.keys()
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected_grads[name], rtol=1e-3, atol=1e-5, err_msg=name)
    for network in (rewritten, written):
        network.set_train(False)
    x, _ = batch()
    np.testing.assert_allclose(rewritten(x).asnumpy(), written(x).asnumpy(), rtol=1e-4, atol=1e-5)


@BLOCKS
def test_the_report(block: type[nn.Cell]) -> None:
    network = ResNet(block)
    before = [name for name, cell in network.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    cell = LessBN(with_loss(network))
    assert cell.report == LessBNReport(cell.removed, cell.kept, None, cell.report.removed_parameters, ())
    assert list(cell.removed) == INNER[block]
    assert set(cell.kept) == set(before) - set(INNER[block])
    kinds = ("moving_mean", "moving_variance", "gamma", "beta")
    assert set(cell.report.removed_parameters) == {f"{name}.{kind}" for name in INNER[block] for kind in kinds}
    assert (cell.head, cell.notes) == (None, ())
    first, second, *_ = str(cell.report).splitlines()
    assert first == f"LessBN: {len(cell.removed)} of {len(before)} batch norms removed"
    assert second == "  removed: " + ", ".join(INNER[block])
    assert "(bn1): RemovedBatchNorm(BatchNorm2d(4))" in str(network)


@BLOCKS
def test_nothing_else_changes(block: type[nn.Cell]) -> None:
    network = ResNet(block)
    cells, parameters = dict(network.cells_and_names()), {p.name: p for p in network.get_parameters()}
    cell = LessBN(network)
    after = dict(network.cells_and_names())
    assert list(after) == list(cells)
    assert {name for name in cells if after[name] is not cells[name]} == set(cell.removed)
    left = {p.name: p for p in cell.get_parameters()}
    assert left.keys() == parameters.keys() - set(cell.report.removed_parameters)
    assert all(left[name] is parameters[name] for name in left)
    trainable = {name for name, p in parameters.items() if name in left and p.requires_grad}
    assert {p.name for p in cell.trainable_params()} == trainable
    for name, old in cells.items():
        if isinstance(old, nn.SequentialCell):
            assert old.cell_list == [after[f"{name}.{i}"] for i in range(len(old))]


@in_pynative_mode
def test_containers_of_every_kind(mode: int) -> None:
    class Net(nn.Cell):
        def __init__(self, inner: bool = True) -> None:
            super().__init__()
            norm = nn.BatchNorm2d if inner else lambda _: nn.Identity()
            self.branch = nn.SequentialCell(
                nn.SequentialCell([nn.Conv2d(1, 4, 3), norm(4)]),
                nn.CellList([nn.Conv2dBnAct(4, 4, 3, has_bn=inner, activation="relu")])[0],
                nn.Conv2dBnAct(4, 4, 3, has_bn=True),
            )
            self.conv, self.bn1, self.bn2 = nn.Conv2d(4, 4, 3), norm(4), nn.BatchNorm2d(4)
            self.steps = (self.conv, self.bn1, nn.ReLU(), self.conv, self.bn2)

        def construct(self, x):
            x = self.branch(x) + x
            out = x
            for step in self.steps:
                out = step(out)
            return out + x

    rewritten, written = Net(), Net(inner=False)
    report = remove_batch_norms(rewritten)
    assert set(report.removed) == {"branch.0.1", "branch.1.batchnorm", "bn1"}
    x = batch()[0]
    outputs = [fill(net).set_train()(x).asnumpy() for net in (rewritten, written)]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
    assert isinstance(rewritten.steps[1], RemovedBatchNorm)
    assert isinstance(rewritten.branch[0][1], RemovedBatchNorm)


@BLOCKS
def test_again_changes_nothing_more(block: type[nn.Cell]) -> None:
    network = ResNet(block)
    train = LessBN(with_loss(network), fn_flag=True)
    cells = dict(network.cells_and_names())
    evaluation = LessBN(network.set_train(False), fn_flag=True)
    assert evaluation.report == train.report == LessBN(LessBN(network)).report
    assert all(cell is cells[name] for name, cell in network.cells_and_names())


def test_training_and_evaluation_networks_are_treated_alike() -> None:
    trained, evaluated = ResNet(Basic).set_train(), ResNet(Basic).set_train(False)
    assert LessBN(with_loss(trained)).report == LessBN(evaluated).report


def test_checkpoints(mode: int) -> None:
    original, rewritten, other = (fill(ResNet(Basic), seed) for seed in range(3))
    for network in (rewritten, other):
        LessBN(network)
    ms.save_checkpoint(original, "original.ckpt")
    missing, extra = ms.load_param_into_net(rewritten, ms.load_checkpoint("original.ckpt"))
    assert missing == []
    assert all(".bn1." in name for name in extra)
    np.testing.assert_array_equal(rewritten.layer1[0].conv1.weight.asnumpy(), original.layer1[0].conv1.weight.asnumpy())
    ms.save_checkpoint(LessBN(rewritten), "rewritten.ckpt")
    assert ms.load_param_into_net(other, ms.load_checkpoint("rewritten.ckpt")) == ([], [])
    x = batch()[0]
    np.testing.assert_array_equal(*(net.set_train(False)(x).asnumpy() for net in (rewritten, other)))


@pytest.mark.parametrize("fn_flag", [False, True])
@standard(lambda p: p.graph == p.fn_flag)
def test_trains(mode: int, fn_flag: bool) -> None:
    network = fill(ResNet(Basic))
    cell = LessBN(with_loss(network), fn_flag=fn_flag)
    before = {p.name: p.asnumpy().copy() for p in cell.trainable_params()}
    step = BoostTrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.05, 0.9)).set_train()
    losses = [float(step(*batch())[0].asnumpy()) for _ in range(8)]
    assert losses[-1] < 0.7 * losses[0]
    assert all(not np.array_equal(p.asnumpy(), before[p.name]) for p in cell.trainable_params())


@in_graph_mode
def test_a_network_that_was_already_called(mode: int) -> None:
    network = fill(ResNet(Basic)).set_train(False)
    x = batch()[0]
    before = network(x).asnumpy()
    remove_batch_norms(network)
    assert np.abs(network(x).asnumpy() - before).max() > 1e-3
    np.testing.assert_array_equal(network(x).asnumpy(), LessBN(network)(x).asnumpy())


def test_without_residual_branches(mode: int) -> None:
    network = nn.SequentialCell(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    cells, x = dict(network.cells_and_names()), batch()[0]
    before = network(x).asnumpy()
    cell = LessBN(network)
    assert (cell.removed, cell.kept) == ((), ("1", "4"))
    assert cell.notes == ("no residual branch found: nothing to remove",)
    assert dict(network.cells_and_names()) == cells
    np.testing.assert_array_equal(cell(x).asnumpy(), before)


def test_without_inner_batch_norms() -> None:
    network = ResNet(Basic, inner=False)
    assert LessBN(network).notes == ("no residual branch has an inner batch norm: nothing to remove",)


def test_a_three_dimensional_batch_norm_is_one() -> None:
    assert LessBN(nn.SequentialCell(nn.BatchNorm3d(4))).kept == ("0",)


def bottlenecks(second: nn.Cell) -> nn.Cell:
    return fill(nn.SequentialCell(nn.Conv2d(1, 4, 3), nn.ReLU(), Bottleneck(4, 1), second, nn.Flatten()))


@in_pynative_mode
def test_mindspore_boost_removes_the_same_but_for_the_shortcuts(mode: int) -> None:
    """In GRAPH_MODE 2.10 also drops the shortcut's batch norm, which ours keeps; in PYNATIVE_MODE it drops none."""
    losses, idle = {}, {}
    for who, wrap in (("plain", lambda net: net), ("reference", boost.LessBN), ("ours", LessBN)):
        network = bottlenecks(Bottleneck(4, 2, 2))
        names = {id(p): p.name for p in network.get_parameters()}
        start = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
        cell = wrap(with_loss(network))
        step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.01, 0.9)).set_train()
        x, y = batch()
        losses[who] = step(x, y).asnumpy()
        means = {names[id(p)]: p for p in network.get_parameters() if p.name.endswith("moving_mean")}
        idle[who] = {name for name, p in means.items() if np.array_equal(p.asnumpy(), start[name])}
    if mode == ms.PYNATIVE_MODE:
        assert idle["reference"] == set()
        np.testing.assert_array_equal(losses["reference"], losses["plain"])
    else:
        gone = {f"{block}.bn{i}.moving_mean" for block in (2, 3) for i in (1, 2)}
        assert idle["reference"] == {*gone, "3.shortcut.1.moving_mean"}
    assert abs(losses["ours"] - losses["plain"]) > 1e-4


def test_mindspore_boost_computes_the_same_without_projections() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    losses = []
    for wrap in (boost.LessBN, LessBN):
        network = bottlenecks(Bottleneck(4, 1))
        cell = wrap(with_loss(network))
        step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.01, 0.9)).set_train()
        losses.append([float(step(*batch()).asnumpy()) for _ in range(3)])
    ms.set_context(mode=ms.PYNATIVE_MODE)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.parametrize("function", [LessBN, remove_batch_norms, less_bn.replace_head])
def test_refuses_what_is_no_network(function) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}: network must be a Cell, got int"):
        function(3)


def test_refuses_a_flag_that_is_none() -> None:
    with pytest.raises(TypeError, match="LessBN: fn_flag must be a bool, got str"):
        LessBN(nn.ReLU(), fn_flag="True")
