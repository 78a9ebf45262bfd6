"""What each rank of test_settings.py runs: one training cell after another, in which one setting is another on rank 1.

main([FOLDER]) writes for each case the error of this rank, or "trained".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext import amp, boost, optim
from boost_ext.callbacks import TrainingState
from boost_ext.config import DimReduceConfig

Case = Callable[[int], nn.Cell]
CASES: dict[str, Case] = {}


class Net(nn.Cell):
    def __init__(self, extra: bool = False) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.w = Parameter(Tensor(rng.standard_normal((4, 3)).astype(np.float32)), name="w")
        self.b = Parameter(Tensor(np.zeros((1, 3), np.float32)), name="b")
        self.more = Parameter(Tensor(np.zeros(3, np.float32)), name="more") if extra else None

    def construct(self, x: Tensor) -> Tensor:
        return (ops.tanh(ops.matmul(x, self.w) + self.b) ** 2).mean()


class Grouped(nn.Cell):
    def __init__(self, manager: nn.Cell) -> None:
        super().__init__()
        self.net, self.manager = Net(), manager

    def construct(self, x: Tensor) -> Tensor:
        return self.manager(self.net(self.manager(x, 0, 1)), 1, 2)


class Decay(nn.learning_rate_schedule.LearningRateSchedule):
    """A user's schedule."""

    def __init__(self, start: float, factor: float) -> None:
        super().__init__()
        self.start, self.factor = start, factor

    def construct(self, global_step: Tensor) -> Tensor:
        return self.start * self.factor ** ops.cast(global_step, ms.float32)


class Sgd(nn.Optimizer):
    """A user's optimizer, whose number ends up as a constant of the graph."""

    def __init__(self, params: Any, factor: float) -> None:
        super().__init__(0.1, params)
        self.factor, self.my_rank = factor, ms.communication.get_rank()

    def construct(self, grads: Any) -> Tensor:
        return ops.assign_sub(self.parameters[0], grads[0] * self.factor)


def of(make: Callable[[list[Parameter]], nn.Optimizer], **kwargs: Any) -> nn.Cell:
    net = Net()
    return boost.BoostTrainOneStepCell(net, make(net.trainable_params()), **kwargs)


def scaled(scale: Any, net: nn.Cell | None = None) -> nn.Cell:
    net = net or Net()
    return boost.BoostTrainOneStepWithLossScaleCell(net, optim.SGD(net.trainable_params(), 0.1), scale)


def case(name: str) -> Callable[[Case], Case]:
    return lambda make: CASES.setdefault(name, make)


def hyperparameter(name: str, good: Any, bad: Any, cls: type[nn.Optimizer], *args: Any) -> None:
    owner = "optim" if cls.__module__.startswith("boost_ext") else "nn"
    CASES[f"{owner}.{cls.__name__} {name}"] = lambda rank: of(lambda p: cls(p, *args, **{name: bad if rank else good}))


for owner in (nn, optim):
    hyperparameter("beta1", 0.9, 0.8, owner.Adam, 0.1)
    hyperparameter("use_nesterov", False, True, owner.Adam, 0.1)
    hyperparameter("weight_decay", 0.0, 0.1, owner.Momentum, 0.1, 0.9)
    hyperparameter("dampening", 0.0, 0.5, owner.SGD, 0.1)
    hyperparameter("eps", 1e-6, 1e-5, owner.Lamb, 0.1)
    hyperparameter("decay", 0.9, 0.8, owner.RMSProp, 0.1)
    hyperparameter("lr_power", -0.5, -0.6, owner.FTRL)
hyperparameter("state_seed", 0, 1, optim.Adam, 0.1)
hyperparameter("state_dtype", "float32", "bfloat16", optim.Adam, 0.1)
hyperparameter("factor", 0.1, 0.2, Sgd)


@case("another optimizer")
def _(rank: int) -> nn.Cell:
    return of(lambda p: (optim.Adam if rank else optim.AdamWeightDecay)(p, 0.1))


@case("schedule")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, nn.ExponentialDecayLR(0.1, 0.9, 5 + rank)))


@case("schedule of a user")
def _(rank: int) -> nn.Cell:
    return of(lambda p: nn.SGD(p, Decay(0.1, 0.9 - 0.1 * rank)))


@case("rates")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, [0.1, 0.2 + rank]))


@case("rate of a group")
def _(rank: int) -> nn.Cell:
    return of(lambda p: nn.Adam([{"params": p[:1], "lr": 0.1 + rank}, {"params": p[1:]}], 0.1))


@case("centralization of a group")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD([{"params": p[:1], "grad_centralization": rank == 1}, {"params": p[1:]}], 0.1))


@case("decay of a group")
def _(rank: int) -> nn.Cell:
    decay = nn.ExponentialDecayLR(0.1, 0.9, 5 + rank)
    return of(lambda p: optim.Adam([{"params": p[:1], "weight_decay": decay}, {"params": p[1:]}], 0.1))


@case("coefficient of LARS")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.LARS(optim.Momentum(p, 0.1, 0.9), coefficient=0.01 + 0.01 * rank))


@case("fewer parameters")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p[: 2 - rank], 0.1))


@case("another network")
def _(rank: int) -> nn.Cell:
    net = Net(extra=rank == 1)
    return boost.BoostTrainOneStepCell(net, optim.SGD(net.trainable_params()[:2], 0.1))


@case("clip_norm")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, 0.1), clip_norm=1.0 + rank)


@case("clip_norm of one")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, 0.1), clip_norm=1.0 if rank else None)


@case("adaptive_clip")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, 0.1), adaptive_clip=boost.AdaptiveClip(exclude=["w", "b"][rank:]))


@case("adaptive_clip of one")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, 0.1), adaptive_clip=0.01 if rank else None)


@case("accumulation_steps")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, 0.1), accumulation_steps=2 + rank)


@case("sens")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, 0.1), sens=1.0 + rank)


@case("compile")
def _(rank: int) -> nn.Cell:
    return of(lambda p: optim.SGD(p, 0.1), compile="off" if rank else "step")


@case("strategy of freezing")
def _(rank: int) -> nn.Cell:
    return of(lambda p: boost.FreezeOpt(optim.SGD(p, 0.1), [p, p[1:]], [0, rank]))


@case("groups of freezing")
def _(rank: int) -> nn.Cell:
    return of(lambda p: boost.FreezeOpt(optim.SGD(p, 0.1), [p, p[rank:]], [0, 1]))


@case("initial scale")
def _(rank: int) -> nn.Cell:
    return scaled(amp.DynamicLossScaleManager(2.0 ** (8 + rank)).get_update_cell())


@case("window of the scale")
def _(rank: int) -> nn.Cell:
    return scaled(amp.DynamicLossScaleManager(2.0**8, 2, 10 + rank).get_update_cell())


@case("window of MindSpore's scale")
def _(rank: int) -> nn.Cell:
    return scaled(nn.DynamicLossScaleUpdateCell(2.0**8, 2, 10 + rank))


@case("largest scale of groups")
def _(rank: int) -> nn.Cell:
    manager = boost.GroupLossScaleManager(4.0, [["net.w", "net.b"]], max_loss_scale=2.0 ** (9 + rank))
    return scaled(manager, Grouped(manager))


@case("scale of groups")
def _(rank: int) -> nn.Cell:
    manager = boost.GroupLossScaleManager(4.0 + rank, [["net.w", "net.b"]])
    return scaled(manager, Grouped(manager))


@case("dim_reduce.sigma")
def _(rank: int) -> nn.Cell:
    path = Path.cwd() / f"P{rank}.npy"
    np.save(path, np.linalg.qr(np.random.default_rng(0).standard_normal((15, 2)))[0].T.astype(np.float32))
    config = DimReduceConfig(n_components=2, pca_mat_path=str(path), sigma=0.4 + 0.1 * rank)
    return of(lambda p: nn.SGD(p, 0.1), dim_reduce=config)


@case("state")
def _(rank: int) -> nn.Cell:
    cell = of(lambda p: optim.Adam(p, 0.1))
    if rank:
        cell.optimizer.moment1[0].set_data(Tensor(np.ones((4, 3), np.float32)))
    return cell


@case("steps made")
def _(rank: int) -> nn.Cell:
    cell = of(lambda p: optim.SGD(p, 0.1))
    cell.steps.set_data(Tensor([rank], ms.int32))
    return cell


@case("nothing")
def _(rank: int) -> nn.Cell:
    """Each rank's own may differ: its number, the timeout of its files."""
    return of(lambda p: Sgd(p, 0.1))


class Stop(ms.Callback):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == self.at:
            raise InterruptedError


def resumed(rank: int, folder: Path) -> dict[str, str]:
    """A training of Model, interrupted and resumed by TrainingState: the bits of every rank."""

    def train(folder: Path, stop: int = 0) -> nn.Cell:
        ms.set_seed(1)
        cell = of(lambda p: optim.Adam(p, 0.1), compile="off")
        x = np.random.default_rng(rank).standard_normal((8, 4)).astype(np.float32)
        data = ms.dataset.NumpySlicesDataset({"x": x}, shuffle=True).batch(2)
        try:
            ms.Model(cell).train(2, data, [TrainingState(folder, every=2), Stop(stop)])
        except InterruptedError:
            assert stop
        return cell

    whole = train(folder / "whole")
    train(folder / "stopped", 7)
    cell = train(folder / "stopped")
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(cell.state_dict()[name].asnumpy(), value.asnumpy(), err_msg=name)
    return {"a TrainingState": f"{cell.steps_made} steps"}


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    rank = ms.communication.get_rank()
    said = {}
    for name, make in CASES.items():
        cell = make(rank)
        try:
            cell(Tensor(np.ones((2, 4), np.float32)))
            said[name] = "trained"
        except ValueError as error:
            said[name] = str(error)
    said |= resumed(rank, folder)
    (folder / f"said-{rank}.json").write_text(json.dumps(said))
