"""Public training code on the cells of boost_ext: the module paths of mindspore.boost, and subclasses."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.boost as theirs
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.networks import Mlp, classes, mlp_batch
from tests.ms.tiers import in_graph_mode, in_pynative_mode, standard
from tests.ms.trainers import (
    MindSporesCell,
    boost_trainer,
    held,
    image_trainer,
    language_trainer,
    summing_trainer,
)

from boost_ext import boost, optim
from boost_ext.amp import DynamicLossScaleManager

MODULES = sorted(path.stem for path in Path(theirs.__file__).parent.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_each_module_of_mindspore_boost_is_there_with_its_names(name: str) -> None:
    ours = importlib.import_module(f"boost_ext.boost.{name}")
    expected = importlib.import_module(f"mindspore.boost.{name}").__all__
    assert set(expected) <= set(ours.__all__)
    for attribute in ours.__all__:
        assert getattr(boost, attribute, getattr(ours, attribute)) is getattr(ours, attribute)


def test_a_module_alone_can_be_imported() -> None:
    script = "import sys, boost_ext; assert not {'mindspore', 'boost_ext.boost'} & set(sys.modules)\n"
    script += "import boost_ext.boost.grad_accumulation as ga; assert callable(ga.gradient_accumulation_op)\n"
    script += "assert boost_ext.boost.grad_accumulation is ga and boost_ext.boost.LessBN"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def momentum(net: nn.Cell, **kwargs: Any) -> nn.Optimizer:
    return nn.Momentum(net.trainable_params(), nn.ExponentialDecayLR(0.1, 0.9, 4), 0.9, **kwargs)


def train(cell: nn.Cell, steps: int, overflow_at: int = -1) -> list[np.ndarray]:
    losses = []
    for step in range(steps):
        x, y = mlp_batch(step, 8)
        if step == overflow_at:
            x = Tensor(np.full(x.shape, np.inf, np.float32))
        outputs = cell(x, y)
        losses.append((outputs[0] if isinstance(outputs, tuple) else outputs).asnumpy())
    return losses


def parameters(cell: nn.Cell) -> list[Parameter]:
    found = [*cell.network.get_parameters(), *cell.optimizer.get_parameters(), *getattr(cell, "ema_weight", ())]
    return found + list(
        cell.gradient_accumulation._grad_accumulation if getattr(cell, "accumulate_grad", False) else ()
    )


def assert_trains_alike(ours: nn.Cell, theirs: nn.Cell, steps: int = 6, overflow_at: int = 3) -> None:
    """Losses, weights, states, averages, what is held, and the loss scale."""
    got, expected = (train(cell, steps, overflow_at) for cell in (ours, theirs))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert expected[0] != expected[-1]
    for p, q in zip(parameters(ours), parameters(theirs), strict=True):
        np.testing.assert_allclose(p.asnumpy(), q.asnumpy(), rtol=1e-5, atol=1e-6, err_msg=p.name)
    np.testing.assert_array_equal(ours.scale_sense.asnumpy(), theirs.scale_sense.asnumpy())


def their_update() -> nn.Cell:
    return nn.DynamicLossScaleUpdateCell(2.0**12, 2, 4)


def our_update() -> nn.Cell:
    return DynamicLossScaleManager(2.0**12, 2, 4).get_update_cell()


@pytest.mark.parametrize("accumulate", [1, 2])
@standard(lambda p: p.graph == (p.accumulate == 2))
def test_an_image_trainer(mode: int, accumulate: int) -> None:
    cells = []
    for module, base, update in (
        (boost, boost.BoostTrainOneStepWithLossScaleCell, our_update()),
        (theirs, MindSporesCell, their_update()),
    ):
        submodule = importlib.import_module(f"{module.__name__}.grad_accumulation")
        net = Mlp()
        # In PYNATIVE_MODE MindSpore refuses to set the count, a Parameter, to an int.
        own = held(boost.GradientAccumulation if mode == ms.PYNATIVE_MODE else module.GradientAccumulation, submodule)
        cells.append(image_trainer(base, own)(classes(net), momentum(net), update, accumulate).set_train())
    assert_trains_alike(*cells)
    if accumulate == 2:  # 5 of 6 steps counted
        assert cells[0].gradient_accumulation._accumulation_step.asnumpy() == 1
        assert cells[0].gradient_accumulation.count.shape == ()


@in_pynative_mode
def test_a_language_trainer(mode: int) -> None:
    cells = []
    for base, update in ((boost.BoostTrainOneStepWithLossScaleCell, our_update()), (MindSporesCell, their_update())):
        net = Mlp()
        # An optimizer may have a scale of its own, which is the trainer's affair.
        cells.append(language_trainer(base)(classes(net), momentum(net, loss_scale=2.0), update).set_train())
    losses = [train(cell, 5, overflow_at=2) for cell in cells]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert cells[0].loss_scale.asnumpy() == cells[1].loss_scale.asnumpy() == 2.0**11
    loss, overflow, scale = cells[0](*mlp_batch(0, 8))
    assert (loss.shape, overflow.shape, overflow.dtype, scale.shape) == ((), (), ms.bool_, ())


@in_graph_mode
def test_a_summing_trainer_with_a_fixed_scale(mode: int) -> None:
    cells = []
    for base in (boost.BoostTrainOneStepWithLossScaleCell, MindSporesCell):
        net = Mlp()
        scale = Tensor(2.0**10, ms.float32)
        cells.append(summing_trainer(base)(classes(net), momentum(net), scale).set_train())
    assert_trains_alike(*cells, steps=5, overflow_at=2)


@pytest.mark.parametrize("steps", [1, 2])
@standard(lambda p: p.graph == (p.steps == 2))
def test_a_trainer_of_mindspore_boost(mode: int, steps: int) -> None:
    """The optimizer takes the scale out, once: also of what is held."""
    nets = [Mlp(), Mlp()]
    options = {"accumulation_steps": steps} if steps > 1 else {}
    base = boost.BoostTrainOneStepCell
    first = boost_trainer(base)(classes(nets[0]), momentum(nets[0], loss_scale=4.0), 4.0, **options)
    plain = base(classes(nets[1]), momentum(nets[1], loss_scale=4.0), 4.0, **options)
    got, expected = train(first, 4), [float(plain(*mlp_batch(step, 8))[0]) for step in range(4)]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


class Counting(boost.BoostTrainOneStepCell):
    """Ours, and something after it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total = Parameter(Tensor(0.0, ms.float32), name="total")

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        loss, overflow, _ = super().construct(*inputs)
        total = ops.assign_add(self.total, loss)
        return ops.depend(loss, total), overflow


def test_a_construct_around_ours_has_all_that_ours_does(mode: int) -> None:
    nets = [Mlp(), Mlp()]
    options = {"clip_norm": 0.25, "accumulation_steps": 2}
    cells = [
        make(classes(net), momentum(net), **options)
        for make, net in zip((Counting, boost.BoostTrainOneStepCell), nets, strict=True)
    ]
    losses = [train(cell, 5) for cell in cells]
    np.testing.assert_array_equal(*losses)
    np.testing.assert_allclose(cells[0].total.asnumpy(), sum(losses[0]), rtol=1e-6)
    assert cells[0].steps_made == cells[1].steps_made == 5
    assert cells[0].grad_norm.asnumpy() == cells[1].grad_norm.asnumpy() > 0.25
    assert cells[0].observe()["micro_batch"] == 1


def test_what_is_loaded_between_two_steps_is_what_the_next_one_uses(mode: int) -> None:
    """A graph keeps the storage of what only a branch reads, unless its root reads it too."""
    net = Mlp()
    trainer = image_trainer(boost.BoostTrainOneStepWithLossScaleCell, boost.GradientAccumulation)
    # Eager optimizers of MindSpore are graphs that read no root of ours.
    momentum_class = nn.Momentum if mode == ms.GRAPH_MODE else optim.Momentum
    optimizer = momentum_class(net.trainable_params(), 0.1, 0.9)
    cell = trainer(classes(net), optimizer, our_update()).set_train()
    x, y = mlp_batch(0, 8)
    cell(x, y)
    for moment in optimizer.moments:
        moment.set_data(Tensor(np.full(moment.shape, 100.0, np.float32)))
    before = net.head.weight.asnumpy().copy()
    cell(x, y)
    np.testing.assert_allclose(before - net.head.weight.asnumpy(), np.full(before.shape, 9.0), atol=0.1)


def test_the_overflow_status_of_half_precision_and_of_one_tensor(mode: int) -> None:
    net = Mlp()
    cell = boost.BoostTrainOneStepWithLossScaleCell(classes(net), momentum(net), Tensor(1.0, ms.float32))
    fine = (Tensor([1.0, 60000.0], ms.float16), Parameter(Tensor(np.ones((2, 3), np.float32).T)))
    status, through = cell.start_overflow_check(Tensor(1.0), fine)
    assert through[0] is fine[0]
    assert not cell.get_overflow_status(status, fine)
    assert cell.get_overflow_status(status, (*fine, Tensor([np.nan], ms.float32)))
    assert cell.get_overflow_status(status, Tensor([-np.inf], ms.float16))
    assert not cell._process_loss_scale(cell._get_overflow_status(status, fine))
