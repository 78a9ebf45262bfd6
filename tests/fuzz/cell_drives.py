"""Who calls a training cell, and what a user does between two of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.train import Callback
from tests.fuzz.cell_networks import batch

from boost_ext.ms.training.model import Model as Ours

BETWEEN = ("evaluation", "rate", "short", "loaded")
AT = (1, 4)
"""Before these steps it is done, or these have a shorter batch."""


def step(cell: Any, inputs: Any) -> float:
    return float(cell(*inputs)[0].astype(ms.float32).asnumpy())


def inputs_of(number: int, between: str) -> tuple[Tensor, ...]:
    return batch(number, rows=2) if between == "short" and number in AT else batch(number)


def disturb(cell: Any, number: int, between: str) -> None:
    """What is done before this step."""
    if number not in AT:
        return
    if between == "evaluation":
        cell.network.set_train(False)
        cell.network(*batch(50))
        cell.network.set_train(True)
    if between == "rate":
        for p in cell.get_parameters():
            if p.name.startswith("learning_rate"):
                ops.assign(p, p.value() / 2)
    if between == "loaded":
        values = {p.name: ms.Parameter(p.value() * 0.5, name=p.name) for p in cell.network.trainable_params()}
        ms.load_param_into_net(cell.network, values)


def trained(cell: Any, numbers: Sequence[int], between: str = "") -> list[float]:
    losses = []
    for n in numbers:
        disturb(cell, n, between)
        losses.append(step(cell, inputs_of(n, between)))
    return losses


def by_jit(cell: Any, numbers: Sequence[int], between: str = "") -> list[float]:
    """By a function of one's own, in which MindSpore compiles the step."""

    @ms.jit
    def train(*inputs: Tensor) -> Any:
        return cell(*inputs)

    losses = []
    for n in numbers:
        disturb(cell, n, between)
        losses.append(step(train, inputs_of(n, between)))
    return losses


class Noting(Callback):
    """Notes the losses of Model, and disturbs it."""

    def __init__(self, numbers: Sequence[int], between: str) -> None:
        self.numbers, self.between, self.losses = list(numbers), between, list[float]()

    def on_train_step_begin(self, run_context: Any) -> None:
        parameters = run_context.original_args()
        disturb(parameters.train_network, self.numbers[parameters.cur_step_num - 1], self.between)

    def on_train_step_end(self, run_context: Any) -> None:
        loss = run_context.original_args().net_outputs[0]
        self.losses.append(float(loss.astype(ms.float32).asnumpy()))


def by_model(made: Any, numbers: Sequence[int], between: str = "") -> list[float]:
    """By a Model, or by MindSpore's around a training cell."""
    model = made if isinstance(made, Ours) else ms.Model(made)

    def samples() -> Iterator[tuple[np.ndarray, ...]]:
        for n in numbers:
            yield tuple(part.asnumpy() for part in inputs_of(n, between))

    data = ms.dataset.GeneratorDataset(samples, ["x", "y"], shuffle=False)
    noting = Noting(numbers, between)
    model.train(1, data, callbacks=[noting], dataset_sink_mode=False)
    return noting.losses


Drive = Callable[..., list[float]]
