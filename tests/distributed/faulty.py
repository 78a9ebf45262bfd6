"""What each rank of test_faults.py runs: six steps, each saved; the last rank ends after the fourth and before its
save, or hangs before the fourth, or nothing happens.

python faulty.py graph|step|off kill|hang|resume FOLDER
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext import boost, optim
from boost_ext.distributed import init_ranks, load_rank_state, save_rank_state

STEPS, FAULT = 6, 3


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)), name="w")

    def construct(self, x: Tensor) -> Tensor:
        return (ops.tanh(ops.matmul(x, self.w)) ** 2).mean()


def main() -> None:
    how, fault, folder = sys.argv[1:]
    ms.set_context(mode=ms.GRAPH_MODE if how == "graph" else ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    init_ranks(60)
    rank = ms.communication.get_rank()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    saved = Path(folder) / "states"

    def new() -> nn.Cell:
        net = Net()
        optimizer = optim.Adam(net.trainable_params(), 0.1)
        return boost.BoostTrainOneStepCell(net, optimizer, compile="step" if how == "graph" else how)

    def step(cell: nn.Cell) -> None:
        x = np.random.default_rng((cell.steps_made, rank)).standard_normal((8, 4))
        cell(Tensor(x.astype(np.float32)))[0].asnumpy()

    def steps_of(rank: int) -> list[int]:
        return sorted(int(path.stem.split("-")[1]) for path in saved.glob(f"rank{rank}-*"))

    cell = new()
    if fault == "resume":
        assert [steps_of(r) for r in range(2)] == [[FAULT, FAULT + 1], [FAULT - 1, FAULT]], "rank 0 is one file ahead"
        meet()
        left = saved / f".boost_ext.{socket.gethostname()}.killed{rank}.part"
        left.mkdir()
        (left / "lock").touch()
        assert load_rank_state(cell, saved) == cell.steps_made == FAULT
        assert steps_of(rank) == [FAULT - 1, FAULT][1 - rank :]
        whole = new()
        for _ in range(STEPS):
            step(whole)
        while cell.steps_made < STEPS:
            step(cell)
            save_rank_state(cell, saved)
        meet()
        assert not list(saved.glob(".*")), "the next save removes what a killed rank left"
        for name, value in whole.state_dict().items():
            np.testing.assert_array_equal(cell.state_dict()[name].asnumpy(), value.asnumpy(), err_msg=name)
        print("resumed to the same bits", flush=True)
        damaged_and_lost(cell, rank, saved)
        return
    assert load_rank_state(cell, saved) == cell.steps_made == 0
    while cell.steps_made < STEPS:
        if fault == "hang" and cell.steps_made == FAULT and rank == 1:
            time.sleep(600)
        step(cell)
        if fault == "kill" and cell.steps_made == FAULT + 1 and rank == 1:
            while not (saved / f"rank0-{FAULT + 1}.ckpt").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        save_rank_state(cell, saved)


def meet() -> None:
    ops.AllReduce()(Tensor([0.0], ms.float32)).asnumpy()


def damaged_and_lost(cell: nn.Cell, rank: int, saved: Path) -> None:
    """A file cut short on one rank: all take the one before. No file on one rank: all say so."""
    if rank == 1:
        path = saved / f"rank1-{STEPS}.ckpt"
        path.write_bytes(path.read_bytes()[:100])
    assert load_rank_state(cell, saved) == cell.steps_made == STEPS - 1
    if rank == 1:
        (saved / f"rank1-{STEPS - 1}.ckpt").unlink()
    try:
        load_rank_state(cell, saved)
    except ValueError as error:
        print(error, flush=True)


if __name__ == "__main__":
    main()
