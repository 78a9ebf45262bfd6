"""thor beside its float64 oracle, on a network with every layer that it treats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from tests.ms.optim.thor_oracle import BLOCK, Oracle, Small, batch, tensors, weights_of
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell
from boost_ext.ms.core.fast_functions import SUBSTITUTES
from boost_ext.ms.core.substitutes import substituted

DAMPINGS = [0.1, 0.1, 0.05, 0.05, 0.02, 0.02]
LAYERS = ("table.embedding_table", "conv.weight", "hidden.weight", "head.weight")


def made(net: nn.Cell, **changes: Any) -> optim.Thor:
    arguments: dict[str, Any] = {
        "learning_rate": Tensor(0.1),
        "damping": 0.1,
        "momentum": 0.9,
        "batch_size": 8,
        "frequency": 2,
        "block_size": BLOCK,
    }
    return optim.thor(net, **{**arguments, **changes})


def close(net: nn.Cell, expected: dict[str, np.ndarray], tolerance: float = 2e-4) -> None:
    """Within `tolerance` of an array's largest element: inverses make a gradient's rounding some ten times larger."""
    for name, w in weights_of(net).items():
        np.testing.assert_allclose(w, expected[name], rtol=0, atol=tolerance * abs(expected[name]).max(), err_msg=name)


def trained(cell: Any, oracle: Oracle | None, steps: range) -> None:
    for i in steps:
        arrays = batch(i)
        cell(*tensors(arrays))
        if oracle is not None:
            oracle.step(*arrays)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "every option": (
        {
            "learning_rate": Tensor([0.1, 0.09, 0.08, 0.07, 0.06], ms.float32),
            "damping": Tensor(DAMPINGS, ms.float32),
            "weight_decay": 0.01,
            "use_nesterov": True,
            "frequency": 3,
            "decay_filter": lambda p: "bias" not in p.name,
            "block_size": 128,
        },
        {
            "rate": [0.1, 0.09, 0.08, 0.07, 0.06],
            "damping": DAMPINGS,
            "weight_decay": 0.01,
            "nesterov": True,
            "frequency": 3,
            "decays": lambda name: "bias" not in name,
            "block": 128,
        },
    ),
    "clipped": (
        {"enable_clip_grad": True, "weight_decay": 0.1, "loss_scale": 16.0},
        {"clip": True, "weight_decay": 0.1},
    ),
}


@pytest.mark.parametrize(
    ("compile", "case"), [*(("step", case) for case in CASES), ("network", "clipped"), ("off", "every option")]
)
@standard(lambda p: (not p.graph) or (p.compile == "step" and p.case == "every option"))
def test_steps(mode: int, compile: Any, case: str) -> None:
    ours, theirs = CASES[case]
    net = Small()
    oracle = Oracle(weights_of(net), **{"rate": 0.1, "damping": 0.1, **theirs})
    optimizer = made(net, **ours)
    trained(BoostTrainOneStepCell(net, optimizer, optimizer.loss_scale, compile=compile), oracle, range(5))
    close(net, oracle.w)
    assert optimizer.layers == LAYERS
    for which, inverses in enumerate((optimizer.matrix_a_inv, optimizer.matrix_g_inv)):
        for name, inverse in zip(LAYERS, inverses, strict=True):
            exact = oracle.inverses[name][which]
            got = inverse.asnumpy()
            full = np.diag(got) if got.ndim == 1 else np.zeros_like(exact)
            for i, block in enumerate(got if got.ndim == 3 else ()):
                at = slice(i * len(block), min((i + 1) * len(block), len(full)))
                full[at, at] = block[: at.stop - at.start, : at.stop - at.start]
            np.testing.assert_allclose(full, exact, rtol=0, atol=2e-4 * abs(exact).max(), err_msg=name)


@in_graph_mode
def test_a_converted_network_is_the_same(mode: int, tmp_path: Path) -> None:
    """The same output, gradients, Parameters and checkpoint; a second conversion changes nothing."""
    net, arrays = Small().set_train(), tensors(batch(0))
    gradients = ops.value_and_grad(net, None, net.trainable_params())
    before = [net(*arrays).asnumpy(), *(g.asnumpy() for g in gradients(*arrays)[1])]
    parameters = list(net.get_parameters())
    ms.save_checkpoint(net, str(tmp_path / "plain.ckpt"))
    assert optim.convert_to_thor_net(net) is net
    cells = [type(c) for c in net.cells()]
    optim.ConvertNetUtils().convert_to_thor_net(net)
    optimizer = made(net)
    assert [type(c) for c in net.cells()] == cells
    assert cells[:3] == [nn.Embedding, nn.Conv2d, nn.Dense]
    gradients = ops.value_and_grad(net, None, net.trainable_params())
    after = [net(*arrays).asnumpy(), *(g.asnumpy() for g in gradients(*arrays)[1])]
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    assert all(a is b for a, b in zip(parameters, net.get_parameters(), strict=True))
    missing, unused = ms.load_param_into_net(net, ms.load_checkpoint(str(tmp_path / "plain.ckpt")))
    assert not missing
    assert not unused
    ms.save_checkpoint(net, str(tmp_path / "converted.ckpt"))
    assert set(ms.load_checkpoint(str(tmp_path / "converted.ckpt"))) == {p.name for p in parameters}
    assert optimizer.get_frequency() == 2


def test_the_optimizer_alone(mode: int) -> None:
    """Called with gradients, after a backward pass of one's own; the gradients stay what they are."""
    net = Small().set_train()
    oracle = Oracle(weights_of(net), 0.1, 0.1)
    optimizer = made(net)
    step = ops.value_and_grad(net, None, optimizer.parameters)
    for i in range(4):
        arrays = batch(i)
        _, grads = step(*tensors(arrays))
        before = [g.asnumpy().copy() for g in grads]
        assert optimizer(grads).asnumpy().tolist() == [True]
        for g, old in zip(grads, before, strict=True):
            np.testing.assert_array_equal(g.asnumpy(), old)
        oracle.step(*arrays)
    close(net, oracle.w)


class Loss(nn.Cell):
    """A network's own loss, for a Model."""

    def construct(self, loss: Tensor, label: Tensor) -> Tensor:
        return loss


@pytest.mark.parametrize("scale", [128.0])
def test_mindspores_own_loop(mode: int, scale: float) -> None:
    """Model.train as the documentation of mindspore.nn.thor has it, with a fixed loss scale."""
    net = Small()
    oracle = Oracle(weights_of(net), 0.1, 0.1)
    optimizer = made(net, loss_scale=scale)
    manager = ms.FixedLossScaleManager(scale, drop_overflow_update=False)
    model = ms.Model(net, optimizer=optimizer, loss_scale_manager=manager)
    model = optim.ConvertModelUtils.convert_to_thor_model(model=model, network=net, optimizer=optimizer)
    data = [batch(i) for i in range(4)]
    dataset = ms.dataset.GeneratorDataset(data, ["ids", "image", "label"], shuffle=False)
    model.train(1, dataset, dataset_sink_mode=True)
    for arrays in data:
        oracle.step(*arrays)
    close(net, oracle.w)


def state(cell: Any) -> dict[str, np.ndarray]:
    return {name: value.asnumpy().copy() for name, value in cell.state_dict().items()}


@pytest.mark.parametrize("scale", [2.0**80])
@in_graph_mode
def test_the_loss_scale_leaves_no_trace(mode: int, scale: float) -> None:
    """It is a power of two: the bits are the same, even where its square is beyond float32."""
    results = []
    for value in (1.0, scale):
        net = Small()
        cell = BoostTrainOneStepWithLossScaleCell(net, made(net, frequency=3), Tensor(value, ms.float32))
        trained(cell, None, range(5))
        results.append(state(cell))
    for name in results[0]:
        if name not in ("scale_sense", "guard.finiteness"):
            np.testing.assert_array_equal(results[0][name], results[1][name], err_msg=name)


@pytest.mark.parametrize("made_before", [1, 2])
@standard(lambda p: p.graph == (p.made_before == 2))
def test_a_step_that_overflows_changes_nothing(mode: int, made_before: int) -> None:
    """Also where it is one that gathers; the next one takes its turn."""
    net = Small()
    oracle = Oracle(weights_of(net), 0.1, 0.1)
    cell = BoostTrainOneStepWithLossScaleCell(net, made(net), Tensor(16.0, ms.float32))
    trained(cell, oracle, range(made_before))
    before = state(cell)
    ids, image, label = batch(99)
    image[0, 0, 0, 0] = np.inf
    assert bool(cell(*tensors((ids, image, label)))[1])
    after = state(cell)
    for name in before:
        if name != "boost.steps":
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    trained(cell, oracle, range(made_before, 4))
    close(net, oracle.w)


@in_graph_mode
def test_resumed_in_the_middle_of_an_interval(mode: int) -> None:
    """With the inverses of the state, since new ones are not due; and with its momentum."""
    cells = [BoostTrainOneStepCell(net := Small(), made(net, frequency=4, momentum=m)) for m in (0.9, 0.5)]
    trained(cells[0], None, range(2))
    cells[1].load_state_dict(cells[0].state_dict())
    for cell in cells:
        trained(cell, None, range(2, 6))
    one, two = state(cells[0]), state(cells[1])
    assert {n for n in one if n.startswith("matrix_")} == {f"matrix_{m}_inv.{n}" for m in "ag" for n in LAYERS}
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


@pytest.mark.usefixtures("graph_mode")
def test_a_watched_convolution_is_native() -> None:
    net = optim.convert_to_thor_net(Small().set_train())
    made(net)
    with substituted(SUBSTITUTES) as met:
        ops.value_and_grad(net, None, net.trainable_params())(*tensors(batch(0)))
    assert met.count(ops.Conv2D) == 1
