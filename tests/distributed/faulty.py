"""What each rank of test_faults.py runs: six steps, each saved; the last rank ends badly in the fourth, or does not.

python faulty.py graph|step|off kill|hang|resume FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext import boost, optim
from boost_ext.checkpoint import load_training_state, save_training_state
from boost_ext.distributed import init_ranks

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
    checkpoint = Path(folder) / f"rank{rank}.ckpt"

    def new() -> nn.Cell:
        net = Net()
        optimizer = optim.Adam(net.trainable_params(), 0.1)
        return boost.BoostTrainOneStepCell(net, optimizer, compile="step" if how == "graph" else how)

    def step(cell: nn.Cell) -> None:
        x = np.random.default_rng((cell.steps_made, rank)).standard_normal((8, 4))
        cell(Tensor(x.astype(np.float32)))[0].asnumpy()

    cell = new()
    if fault == "resume":
        load_training_state(cell, checkpoint)
        assert cell.steps_made == FAULT
        whole = new()
        for _ in range(STEPS):
            step(whole)
        while cell.steps_made < STEPS:
            step(cell)
        for name, value in whole.state_dict().items():
            np.testing.assert_array_equal(cell.state_dict()[name].asnumpy(), value.asnumpy(), err_msg=name)
        print("resumed to the same bits", flush=True)
        return
    while cell.steps_made < STEPS:
        if cell.steps_made == FAULT and rank == 1:
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        step(cell)
        save_training_state(cell, checkpoint)


if __name__ == "__main__":
    main()
