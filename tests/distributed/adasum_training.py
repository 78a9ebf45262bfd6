"""Training over ranks with AdaSum, for adasum_script.py: what the cell does step by step, and digits."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext import boost, optim
from boost_ext.demo import digits
from boost_ext.demo.network import accuracy, loss_function, new_network

STEPS = 3
VARIANTS = {  # mode, compile, loss scaling, micro-batches, devices of a node
    "graph": (ms.GRAPH_MODE, "step", False, 1, 1),
    "pynative": (ms.PYNATIVE_MODE, "step", False, 1, 1),
    "network": (ms.PYNATIVE_MODE, "network", True, 1, 1),
    "accumulated": (ms.GRAPH_MODE, "step", True, 2, 1),
    "nodes of two": (ms.GRAPH_MODE, "step", False, 1, 2),
}
HALVES, HALF_RATE = "half weights", 1e-5  # steps far below the spacing
BATCH, EPOCHS, RATE = 32, 6, 0.05


class Regression(nn.Cell):
    """The mean square of what two layers leave of the targets."""

    def __init__(self, dtypes: Any = (ms.float32, ms.float32)) -> None:
        super().__init__()
        draws = np.random.default_rng(7)
        first, second = (Tensor(draws.standard_normal(shape).astype(np.float32)) for shape in ((6, 9), (9, 2)))
        self.first = Parameter(first.astype(dtypes[0]), name="first")
        self.second = Parameter(second.astype(dtypes[1]), name="second")

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        first, second = ops.cast(self.first, ms.float32), ops.cast(self.second, ms.float32)
        return ops.square(ops.matmul(ops.tanh(ops.matmul(x, first)), second) - y).mean()


def batch(rank: int, number: int) -> tuple[Tensor, Tensor]:
    draws = np.random.default_rng((rank, number))
    return tuple(Tensor(draws.standard_normal((8, width)).astype(np.float32)) for width in (6, 2))


def optimizer_of(network: nn.Cell) -> nn.Optimizer:
    return nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)


def with_adasum(network: nn.Cell, optimizer: nn.Cell, devices: int, steps: int = 1) -> tuple[Any, nn.Cell]:
    switches = {"mode": "manual", "adasum": True, "grad_accumulation": steps > 1}
    sections = {
        "boost": switches,
        "common": {"device_number": devices},
        "grad_accumulation": {"grad_accumulation_step": steps},
    }
    auto = boost.AutoBoost("O0", sections)
    _, optimizer = auto.network_auto_process_train(network, optimizer)
    return auto.plan, optimizer


def one_variant(rank: int, ranks: int, name: str) -> dict[str, Any]:
    """The weights after each step, and the deltas that this rank's optimizer would have made alone."""
    mode, compile, scaled, micro, devices = VARIANTS[name]
    ms.set_context(mode=mode)
    network = Regression()
    plan, optimizer = with_adasum(network, optimizer_of(network), devices, micro)
    if scaled:
        cell = boost.BoostTrainOneStepWithLossScaleCell(
            network, optimizer, Tensor([256.0], ms.float32), compile=compile, plan=plan
        )
    else:
        cell = boost.BoostTrainOneStepCell(network, optimizer, compile=compile, plan=plan)
    assert cell.check_adasum_enable()
    assert plan["adasum"].details == {"device_number": devices, "nodes": ranks // devices}
    cell.set_train()

    ms.set_context(mode=ms.PYNATIVE_MODE)
    alone = Regression()
    alone_optimizer = optimizer_of(alone)
    gradient = ms.value_and_grad(alone, None, alone.trainable_params())
    node = rank // devices * devices
    found: dict[str, Any] = {}
    for step in range(STEPS):
        ms.set_context(mode=mode)
        for k in range(micro):
            loss, overflow, _ = cell(*batch(rank, micro * step + k))
        ms.set_context(mode=ms.PYNATIVE_MODE)
        assert not bool(overflow.asnumpy())
        found[f"{name} {step} loss"] = loss.asnumpy()
        # Of this node: of all its devices and all micro-batches.
        given = [batch(r, micro * step + k) for r in range(node, node + devices) for k in range(micro)]
        grads = [gradient(*inputs)[1] for inputs in given]
        before = [w.asnumpy().copy() for w in alone.trainable_params()]
        alone_optimizer(
            tuple(Tensor(np.mean([g.asnumpy() for g in column], axis=0)) for column in zip(*grads, strict=True))
        )
        for i, (own, w) in enumerate(zip(network.trainable_params(), alone.trainable_params(), strict=True)):
            found[f"{name} {step} weight {i}"] = own.asnumpy().copy()
            found[f"{name} {step} delta {i}"] = before[i] - w.asnumpy()
            ops.assign(w, Tensor(own.asnumpy().copy()))  # set_data would give it another storage
    return found


def half_weights(rank: int, ranks: int) -> dict[str, Any]:
    """The masters before and after each step, what this node's gradients alone would have made, and the weights."""
    ms.set_context(mode=ms.GRAPH_MODE)
    network = Regression((ms.float16, ms.bfloat16))
    weights = network.trainable_params()
    plan, optimizer = with_adasum(network, optim.Momentum(weights, HALF_RATE, 0.0), 1)
    cell = boost.BoostTrainOneStepCell(network, optimizer, plan=plan).set_train()
    gradient = ms.value_and_grad(network, None, weights)
    found: dict[str, Any] = {}
    for step in range(STEPS):
        ms.set_context(mode=ms.PYNATIVE_MODE)
        grads = gradient(*batch(rank, step))[1]
        found |= {f"{HALVES} {step} before {i}": m.asnumpy().copy() for i, m in enumerate(optimizer.masters)}
        found |= {f"{HALVES} {step} grad {i}": g.astype(ms.float32).asnumpy() for i, g in enumerate(grads)}
        ms.set_context(mode=ms.GRAPH_MODE)
        cell(*batch(rank, step))
        for i, (weight, master) in enumerate(zip(weights, optimizer.masters, strict=True)):
            found[f"{HALVES} {step} after {i}"] = master.asnumpy().copy()
            found[f"{HALVES} {step} weight {i}"] = weight.astype(ms.float32).asnumpy()
            found[f"{HALVES} {step} rounded {i}"] = master.astype(weight.dtype).astype(ms.float32).asnumpy()
    return found


def overflow_and_resume(rank: int, ranks: int) -> dict[str, Any]:
    """Three steps, of which the second has an inf on the last rank alone; and the third again in a new cell."""
    ms.set_context(mode=ms.GRAPH_MODE)

    def new() -> tuple[nn.Cell, Any]:
        network = Regression()
        plan, optimizer = with_adasum(network, optimizer_of(network), 1)
        scale = Tensor([64.0], ms.float32)
        cell = boost.BoostTrainOneStepWithLossScaleCell(network, optimizer, scale, plan=plan)
        return network, cell.set_train()

    def weights(network: nn.Cell) -> list[Any]:
        return [w.asnumpy().copy() for w in network.trainable_params()]

    network, cell = new()
    cell(*batch(rank, 0))
    before = weights(network)
    x, y = batch(rank, 1)
    if rank == ranks - 1:
        y = y * np.inf
    _, overflow, _ = cell(x, y)
    found = {"overflow": overflow.asnumpy(), "overflow changed": not all(map(np.array_equal, before, weights(network)))}
    kept = cell.state_dict()
    cell(*batch(rank, 2))
    other, again = new()
    again.load_state_dict(kept)
    again(*batch(rank, 2))
    for i, (one, same) in enumerate(zip(weights(network), weights(other), strict=True)):
        found |= {f"uninterrupted {i}": one, f"resumed {i}": same, f"before {i}": before[i]}
    return found


def train_digits(rank: int, ranks: int, *, over_ranks: bool = True) -> dict[str, Any]:
    """An epoch is one pass over the images, whatever the number of ranks: each rank sees its share of the batches."""
    ms.set_context(mode=ms.GRAPH_MODE)
    data = digits.load()
    network = new_network(seed=3)
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=RATE, momentum=0.9)
    plan = None
    if over_ranks:
        plan, optimizer = with_adasum(network, optimizer, 1)
    cell = boost.BoostTrainOneStepCell(nn.WithLossCell(network, loss_function()), optimizer, plan=plan).set_train()
    assert cell.check_adasum_enable() == over_ranks
    for epoch in range(EPOCHS):
        chosen = list(digits.batches(data, BATCH, epoch, seed=5))
        for images, labels in chosen[rank : len(chosen) // ranks * ranks : ranks]:
            cell(Tensor(images), Tensor(labels))
    return {"digits accuracy": accuracy(network, data), "digits steps": cell.steps_made}


def everything(rank: int, ranks: int) -> dict[str, Any]:
    found = train_digits(rank, ranks) | overflow_and_resume(rank, ranks) | half_weights(rank, ranks)
    for name, (_, _, _, _, devices) in VARIANTS.items():
        if ranks > devices:
            found |= one_variant(rank, ranks, name)
    return found
