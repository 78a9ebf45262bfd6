"""What each rank of test_data_parallel.py and test_dim_reduce_ranks.py runs; alone: the same with the whole batch.

    main([OUT, MODE/CASE...]) on ranks, python data_parallel.py OUT MODE/CASE... alone.

Each case trains a small network for some steps and returns arrays, which go into OUT/<rank>-<mode>-<case>.npz.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from collectives import counted
from mindspore import Parameter, Tensor, nn, ops

from boost_ext import boost, optim, pca
from boost_ext.amp import DynamicLossScaleManager, FixedLossScaleManager
from boost_ext.checkpoint import load_training_state, save_training_state
from boost_ext.config import DimReduceConfig

BATCH, FEATURES, HIDDEN, OUTPUTS = 24, 5, 4, 3
OVERFLOW_STEP = 2
Arrays = dict[str, np.ndarray]
CASES: dict[str, Callable[[], Arrays]] = {}


class World:
    rank, size, out, mode = 0, 1, Path(), "graph"


def case(function: Callable[[], Arrays]) -> Callable[[], Arrays]:
    CASES[function.__name__] = function
    return function


class Net(nn.Cell):
    """mean((tanh(x a + b) c - y)^2), with names that gradient freezing splits into two blocks."""

    def __init__(self, dtype: object = ms.float32, groups: nn.Cell | None = None) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        shapes = {"a": (FEATURES, HIDDEN), "b": (HIDDEN,), "s": (1,), "c": (HIDDEN, OUTPUTS)}
        for name, shape in shapes.items():
            value = Tensor((0.5 * rng.standard_normal(shape)).astype(np.float32)).astype(dtype)
            setattr(self, name, Parameter(value, name=name))
        self.groups = groups

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        if self.groups is not None:
            x = self.groups(x, 0, 1)
        a, b, s, c = (ops.cast(p, ms.float32) for p in (self.a, self.b, self.s, self.c))
        hidden = ops.tanh(ops.matmul(x, a) + b) * s
        if self.groups is not None:
            hidden = self.groups(hidden, 1, 2)
        out = ops.matmul(hidden, c)
        if self.groups is not None:
            out = self.groups(out, 2, 3)
        return ((out - y) ** 2).mean()


def batch(step: int, *, bad: bool = False) -> tuple[Tensor, Tensor]:
    """This rank's part of the step's batch; `bad`: with inf in the last sample, which the last rank has."""
    rng = np.random.default_rng(100 + step)
    x, y = rng.standard_normal((BATCH, FEATURES)), rng.standard_normal((BATCH, OUTPUTS))
    if bad:
        y[-1] = np.inf
    share = BATCH // World.size
    part = slice(World.rank * share, (World.rank + 1) * share)
    return Tensor(x[part].astype(np.float32)), Tensor(y[part].astype(np.float32))


def weights(net: nn.Cell) -> Arrays:
    return {f"weight.{p.name}": p.astype(ms.float32).asnumpy() for p in net.trainable_params()}


def train(cell: nn.Cell, net: nn.Cell, steps: int = 5, *, overflow: bool = False, first: int = 0) -> Arrays:
    """Train; `overflow`: the last rank's batch of step OVERFLOW_STEP has inf."""
    seen: dict[str, list[float]] = {"loss": [], "overflow": [], "scale": []}
    for step in range(first, first + steps):
        bad = overflow and step == OVERFLOW_STEP
        before = weights(net)
        loss, flag, scale = cell(*batch(step, bad=bad))
        seen["loss"].append(float(loss.asnumpy()))
        seen["overflow"].append(float(flag.asnumpy()))
        seen["scale"].append(float(scale.asnumpy()))
        if bad:
            assert all(np.array_equal(before[k], v) for k, v in weights(net).items()), "a step that overflowed wrote"
    return {**{k: np.asarray(v, np.float64) for k, v in seen.items()}, **weights(net)}


def momentum(net: nn.Cell) -> nn.Cell:
    return optim.Momentum(net.trainable_params(), 0.1, 0.9)


@case
def plain() -> Arrays:
    net = Net()
    return train(boost.BoostTrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9)), net)


@case
def network(compile: str = "network") -> Arrays:
    net = Net()
    return train(boost.BoostTrainOneStepCell(net, momentum(net), compile=compile), net)


CASES["eager"] = lambda: network("off")


@case
def added_up() -> Arrays:
    """gradients_mean=False: the sum of the ranks' gradients."""
    ms.set_auto_parallel_context(gradients_mean=False)
    net = Net()
    result = train(boost.BoostTrainOneStepCell(net, momentum(net)), net)
    ms.set_auto_parallel_context(gradients_mean=True)
    return result


@case
def halves() -> Arrays:
    net = Net(ms.float16)
    return train(boost.BoostTrainOneStepWithLossScaleCell(net, momentum(net), Tensor(8.0, ms.float32)), net)


@case
def adaptive_clip() -> Arrays:
    """Of the mean over ranks: what each rank clipped on its own would have another mean."""
    net = Net()
    clip = boost.AdaptiveClip(0.05, exclude=["c"])
    scale = Tensor(8.0, ms.float32)
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, momentum(net), scale, adaptive_clip=clip)
    return train(cell, net, overflow=True)


@case
def dynamic_scale() -> Arrays:
    net = Net()
    manager = DynamicLossScaleManager(1024, 2, 2)
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, momentum(net), manager.get_update_cell())
    return train(cell, net, 6, overflow=True)


class _Trainer(boost.BoostTrainOneStepWithLossScaleCell):
    """As public trainers write it; asks for overflow before the gradients are reduced."""

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss = self.network(*inputs)
        status, scale = self.start_overflow_check(loss, self.scale_sense)
        grads = self.grad(self.network, self.weights)(*inputs, ops.ones_like(loss) * scale)
        grads = self.hyper_map(ops.partial(ops.mul, 1 / scale), grads)
        overflow = self.process_loss_scale(self.get_overflow_status(status, grads))
        if not overflow:
            loss = ops.depend(loss, self.optimizer(self.grad_reducer(grads)))
        return loss, overflow, scale.value()


@case
def own_construct() -> Arrays:
    net = Net()
    manager = DynamicLossScaleManager(1024, 2, 2)
    cell = _Trainer(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), manager.get_update_cell())
    return train(cell, net, 4, overflow=True)


@case
def fixed_scale() -> Arrays:
    net = Net()
    manager = FixedLossScaleManager(256, drop_overflow_update=True)
    cell = boost.BoostTrainOneStepWithLossScaleCell(
        net, nn.Adam(net.trainable_params(), 0.01), manager.get_update_cell()
    )
    return train(cell, net, 4, overflow=True)


@case
def group_scale() -> Arrays:
    manager = boost.GroupLossScaleManager(64, [])
    net = Net(groups=manager)
    manager.loss_scale_groups = [[net.a, net.b, net.s], [net.c]]
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, momentum(net), manager)
    result = train(cell, net, 4, overflow=True)
    return {**result, "scales": np.asarray([float(s.asnumpy()) for s in manager.loss_scales])}


@case
def accumulation() -> Arrays:
    net = Net()
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, momentum(net), Tensor(16.0, ms.float32), accumulation_steps=2)
    return {**train(cell, net, 6, overflow=True), "count": cell.accumulation.count.asnumpy()}


@case
def freezing() -> Arrays:
    net = Net()
    ms.set_seed(World.rank)  # the sequence must not come from here
    np.random.seed(World.rank)  # noqa: NPY002 - what mindspore.boost draws from
    freeze = boost.GradientFreeze(2, 1, 0.4, 20)
    _, optimizer = freeze.freeze_generate(net, momentum(net))
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, optimizer, Tensor(16.0, ms.float32), accumulation_steps=2)
    result = train(cell, net, 7, overflow=True)
    return {**result, "schedule": np.asarray(optimizer.schedule), "position": optimizer.position.asnumpy()}


@case
def resume() -> Arrays:
    """3 + 3 steps through files are the bits of 6."""
    path = World.out / f"rank{World.rank}-{World.mode}.ckpt"

    def cell() -> tuple[nn.Cell, nn.Cell]:
        net = Net()
        manager = DynamicLossScaleManager(1024, 2, 2)
        return net, boost.BoostTrainOneStepWithLossScaleCell(net, momentum(net), manager.get_update_cell())

    net, whole = cell()
    expected = train(whole, net, 6, overflow=True)
    net, first = cell()
    train(first, net, 3, overflow=True)
    save_training_state(first, path)
    net, second = cell()
    load_training_state(second, path)
    result = train(second, net, 3, first=3)
    for name in weights(net):
        assert np.array_equal(result[name], expected[name]), name
    assert np.array_equal(result["scale"], expected["scale"][3:])
    return expected


@case
def different_starts() -> Arrays:
    if World.size == 1:
        return {}
    net = Net()
    net.b.set_data(Tensor(np.full(HIDDEN, World.rank, np.float32)))
    try:
        boost.BoostTrainOneStepCell(net, momentum(net))(*batch(0))
    except ValueError as error:
        return {"error": np.asarray(str(error))}
    raise AssertionError("ranks with different weights trained")


@case
def broadcast() -> Arrays:
    """parameter_broadcast: the others take rank 0's weights, and what began with them: masters and averages."""
    net = Net(ms.float16)
    net.b.set_data(net.b + World.rank)
    average = boost.ExponentialMovingAverage(0.5, warm_up=False)
    ms.set_auto_parallel_context(parameter_broadcast=World.size > 1)
    result = train(boost.BoostTrainOneStepCell(net, momentum(net), weight_average=average), net)
    ms.set_auto_parallel_context(parameter_broadcast=False)
    return {**result, **{p.name: p.asnumpy() for p in average.averages}}


@case
def freeze_cells() -> Arrays:
    """mindspore.boost's way to freeze: a cell for each group, which gets a reducer."""
    net = Net()
    _, optimizer = boost.GradientFreeze(2, 0, 0.5, 20).freeze_generate(net, momentum(net))
    grad = ops.GradOperation(get_by_list=True, sens_param=True)
    cells = boost.freeze_cell(World.size > 1, net, optimizer, 1.0, grad, False, True, World.size)
    losses = [float(cells[step % 2](*batch(step)).asnumpy()) for step in range(4)]
    return {"loss": np.asarray(losses), **weights(net)}


def matrix(path: Path, k: int) -> Path:
    n = sum(p.size for p in Net().trainable_params())
    q, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((n, k)))
    if World.rank == 0 and not path.exists():
        np.save(path.with_suffix(".part.npy"), q.T.astype(np.float32))
        path.with_suffix(".part.npy").rename(path)
    return path


def dim_reduce(k: int, scale: float | None = None, compile: str = "step", lr: float = 20.0, **stored: Any) -> Arrays:
    net = Net()
    path = matrix(World.out / f"P{k}.npy", k)
    config = DimReduceConfig(n_components=k, pca_mat_path=str(path), alpha=0.05, timeout=30, **stored)
    optimizer = nn.Momentum(net.trainable_params(), lr, 0.5)
    make, sens = boost.BoostTrainOneStepCell, 1.0
    if scale is not None:
        make, sens = boost.BoostTrainOneStepWithLossScaleCell, Tensor(scale, ms.float32)
    cell = make(net, optimizer, sens, dim_reduce=config, compile=compile)
    inner, seen, counts = cell.apply_slot.dim_reduce, [], []
    for step in range(8):
        with counted() as count:
            cell(*batch(step % 2))
        counts.append([count.pop("AllGather", 0), count.pop("AllReduce", 0), count.total()])
        seen.append(inner.accepted_rho.asnumpy()[0])
    assert len(inner.pca_mat.asnumpy()) == -(-k // World.size)
    told = {"rho": np.asarray(seen), "collectives": np.asarray(counts), "failed": inner.failed_searches.asnumpy()}
    return {**told, "B": inner.bk.asnumpy(), "gk": inner.gk.asnumpy(), **weights(net)}


@case
def dim_reduce_5() -> Arrays:
    return dim_reduce(5)  # a learning rate that asks for many points


@case
def dim_reduce_2_scaled() -> Arrays:
    # Each rank's row as codes; of three ranks one has none. Two points: some steps are refused.
    return dim_reduce(2, 1024.0, pca_mat_dtype="int8", max_search=2)


@case
def dim_reduce_4_eager() -> Arrays:
    return dim_reduce(4, compile="off", max_search=5)


@case
def dim_reduce_autoboost() -> Arrays:
    """By configuration, with the matrix from checkpoints: rank 0 builds it, once."""
    folder, path = World.out / f"checkpoints-{World.mode}", World.out / f"built-{World.mode}.npy"
    if World.rank == 0:
        folder.mkdir(exist_ok=True)
        rng = np.random.default_rng(9)
        for i in range(5):
            shapes = [(p.name, p.shape) for p in Net().get_parameters()]
            entries = [{"name": n, "data": Tensor(rng.standard_normal(s), ms.float32)} for n, s in shapes]
            ms.save_checkpoint(entries, str(folder / f"c-{i}.ckpt"))
    meet()
    settings = {"n_components": 4, "weight_load_dir": str(folder), "pca_mat_path": str(path), "timeout": 30}
    net = Net()
    auto = boost.AutoBoost("O0", {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": settings})
    _, optimizer = auto.network_auto_process_train(net, nn.SGD(net.trainable_params(), 0.5))
    cell = boost.BoostTrainOneStepCell(net, optimizer)
    for step in range(3):
        cell(*batch(step))
    whole = pca.load_matrix(path, n_components=4, n_elements=sum(p.size for p in net.get_parameters()))
    return {"mine": cell.apply_slot.dim_reduce.pca_mat.asnumpy(), "all": whole, **weights(net)}


@case
def rank_0_fails() -> Arrays:
    """Too few checkpoints: rank 0 cannot build the matrix, and the others hear of it long before their time-out."""
    if World.size == 1:
        return {}
    folder = World.out / f"empty-{World.mode}"
    folder.mkdir(exist_ok=True)
    config = DimReduceConfig(weight_load_dir=str(folder), pca_mat_path=str(World.out / "never.npy"), timeout=120)
    net = Net()
    try:
        boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.5), dim_reduce=config)
    except (ValueError, RuntimeError) as error:
        return {"error": np.asarray(str(error))}
    raise AssertionError("a matrix came from nowhere")


def meet() -> None:
    """All ranks are here."""
    if World.size > 1:
        ops.AllReduce()(Tensor([0.0], ms.float32)).asnumpy()


def main(arguments: list[str], alone: bool = False) -> None:
    out, *names = arguments
    World.out = Path(out)
    World.out.mkdir(parents=True, exist_ok=True)
    if not alone:
        World.rank, World.size = ms.communication.get_rank(), ms.communication.get_group_size()
    for which in names:
        World.mode, name = which.split("/")
        ms.set_context(mode=ms.GRAPH_MODE if World.mode == "graph" else ms.PYNATIVE_MODE)
        try:
            result = CASES[name]()
        except BaseException:
            print(f"case {name} in {World.mode}", flush=True)
            traceback.print_exc()
            raise
        np.savez(World.out / f"{World.rank}-{World.mode}-{name}.npz", **result)


if __name__ == "__main__":
    gc.freeze()  # as in tests/conftest.py
    ms.set_device("CPU")
    main(sys.argv[1:], alone=True)
