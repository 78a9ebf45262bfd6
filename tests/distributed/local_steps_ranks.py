"""Ranks train on batches of their own, with an exchange once in some steps, beside the simulator of all. Each prints
whether its weights are the simulator's to the bit, and, of two ranks, whether it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.communication import get_group_size, get_rank
from tests.ms.test_local_steps import Net, batch, made, plain, values

from boost_ext.distributed import LocalSteps, load_rank_state, save_rank_state
from boost_ext.local_steps import LocalStepsSimulator

IN_A_LOOP: list[dict[str, Any]] = [
    {"outer": "mean", "compress": "topk", "error_decay": 0.9},
    {"outer": "adasum", "compress": "int8"},
    {"outer": "adacons"},
    {"outer": "nesterov", "learning_rate": 0.5},
]
ON_THREE: list[dict[str, Any]] = [{"outer": "mean"}, {"outer": "nesterov", "compress": "int8"}, {"outer": "adacons"}]
STEPS = 7


class Simulated:
    """All ranks in this process: one plain training cell, which takes up the state of each in turn."""

    def __init__(self, cell: Any, start: Any, **options: Any) -> None:
        self.cell, self.states = cell, [dict(start) for _ in range(get_group_size())]
        # Of three and more ranks an all-reduce without codes sums in another order.
        summed = "compress" not in options and options["outer"] in ("mean", "nesterov")
        self.tolerance = 1e-6 if summed and len(self.states) > 2 else 0.0
        self.names = [p.name for p in cell.network.trainable_params()]
        self.statistics = ["norm.moving_mean", "norm.moving_variance"]
        self.weights = [[start[name].asnumpy().copy() for name in self.names] for _ in self.states]
        self.local = LocalStepsSimulator(self.weights, **options)

    def step(self, number: int) -> None:
        for rank in range(len(self.states)):
            self.cell.load_state_dict(self.states[rank])
            self.cell(*batch(10 * number + rank))
            self.states[rank] = self.cell.state_dict()
            for array, name in zip(self.weights[rank], self.names, strict=True):
                array[...] = self.states[rank][name].asnumpy()
        if self.local.step():
            for name in self.statistics:
                mean = np.mean([state[name].asnumpy() for state in self.states], axis=0, dtype=np.float64)
                for state in self.states:
                    state[name] = Tensor(mean.astype(np.float32))
            for state, arrays in zip(self.states, self.weights, strict=True):
                state.update({name: Tensor(array) for name, array in zip(self.names, arrays, strict=True)})

    def require(self, number: int, parameters: Any) -> None:
        for name in (*self.names, *self.statistics):
            got, expected = parameters[name].asnumpy(), self.states[get_rank()][name].asnumpy()
            about = f"{self.local.rule}, {number}, {name}"
            np.testing.assert_allclose(got, expected, rtol=self.tolerance, atol=self.tolerance, err_msg=about)


def in_a_cell() -> Any:
    options: dict[str, Any] = {"every": 3, "outer": "nesterov", "compress": "int8"}
    cell, other = made(**options), plain(Net())
    simulated = Simulated(other, other.state_dict(), **options)
    for number in range(STEPS):
        cell(*batch(10 * number + get_rank()))
        simulated.step(number)
        simulated.require(number, cell.network.parameters_dict())
    return cell


def in_a_loop(cell: Any, start: Any, options: dict[str, Any]) -> None:
    """On the cell that computes all ranks, too: it takes up this rank's own state."""
    cell.load_state_dict(start)
    local, mine = LocalSteps(every=2, **options), dict(start)
    simulated = Simulated(cell, start, every=2, **options)
    local.attach(cell.network)
    for number in range(4):
        cell.load_state_dict(mine)
        cell(*batch(10 * number + get_rank()))
        assert local.step() == (number % 2 == 1)
        mine = cell.state_dict()
        simulated.step(number)
        simulated.require(number, mine)


def resumes(cell: Any, folder: Path) -> None:
    """From the middle of a window: what comes next has the same bits again."""
    save_rank_state(cell, folder)

    def go_on() -> list[np.ndarray]:
        for number in range(STEPS, STEPS + 4):
            cell(*batch(10 * number + get_rank()))
        return values(cell.network.get_parameters())

    first = go_on()
    assert load_rank_state(cell, folder) == STEPS == cell.local_steps.steps
    for a, b in zip(first, go_on(), strict=True):
        np.testing.assert_array_equal(a, b)


def said(error: type[Exception], call: Any) -> str:
    try:
        call()
    except error as raised:
        return str(raised)
    raise AssertionError(f"no {error.__name__}")


def refuses() -> None:
    net = Net()
    text = said(ValueError, lambda: LocalSteps(every=2 + get_rank()).attach(net))
    assert "LocalSteps: every must be the same on all ranks, got 3 on rank 1 and 2 on rank 0" in text, text
    ops.assign(net.half, net.half + get_rank())
    text = said(ValueError, lambda: LocalSteps(every=2).attach(net))
    assert "LocalSteps: the weights must be the same on all ranks, got others on rank 1 than on rank 0: half" in text, (
        text
    )
    net, local = Net(), LocalSteps(every=1)
    local.attach(net)
    if get_rank() == 1:
        ops.assign(net.half, net.half * float("nan"))
    text = said(FloatingPointError, local.step)
    assert text == "LocalSteps: weights must be finite at an exchange, got others on rank 1", text
    assert local.steps == 0


def main(arguments: list[str]) -> None:
    ms.reset_auto_parallel_context()
    two = get_group_size() == 2
    if two:
        ms.set_context(mode=ms.GRAPH_MODE)
        resumes(in_a_cell(), Path(arguments[0]))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cell = plain(Net())
    start = cell.state_dict()
    for options in IN_A_LOOP if two else ON_THREE:
        in_a_loop(cell, start, options)
    if two:
        refuses()
    print(f"local steps: rank {get_rank()} is right", flush=True)
