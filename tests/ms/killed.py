"""What test_training_state.py kills: a training of Model that a TrainingState saves.

python killed.py plain|boost FOLDER SEED: trains once without an interruption; then again and again, each time in a
process that is killed at a random moment, until it is complete. The processes are forked before MindSpore has run
anything, since its import takes longer than the training. Each step is noted in a file.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import vision
from mindspore.train.callback import EarlyStopping, LearningRateScheduler, ReduceLROnPlateau
from tests.ms.networks import Mlp

from boost_ext import Model, amp, boost, optim
from boost_ext.callbacks import TrainingState
from boost_ext.ms.core.resume import is_scratch

EPOCHS, BATCHES, EVERY = 5, 7, 3
KILLS = 3


class Notes(ms.Callback):
    """Each step with the bits of its loss and what callbacks see; tells the parent of the first one."""

    def __init__(self, path: Path, told: int | None) -> None:
        super().__init__()
        self.path, self.told = path, told

    def on_train_step_end(self, run_context: Any) -> None:
        seen = run_context.original_args()
        loss, overflow, scale = (float(output.asnumpy()) for output in seen.net_outputs)
        rate = float(seen.train_network.optimizer.learning_rate.asnumpy())
        with open(self.path, "a") as file:
            print(seen.cur_step_num, seen.cur_epoch_num, loss.hex(), overflow, scale, rate.hex(), file=file)
        if self.told is not None:
            os.write(self.told, b".")
            time.sleep(0.01)


class Counter(ms.Callback):
    """One with a state of its own, which changes the training."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell, self.seen = cell, 0

    def on_train_epoch_begin(self, run_context: Any) -> None:
        self.seen += 1
        p = next(iter(self.cell.network.trainable_params()))
        p.set_data(p * (1.0 - 0.01 * self.seen))

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Flat(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.drop, self.flatten = Mlp(), nn.Dropout(p=0.2), nn.Flatten()

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.mlp(self.drop(self.flatten(x)))


def dataset(seed: int) -> Any:
    """Shuffled, with random crops and some infs; what is left for an eighth batch is dropped."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * BATCHES + 2, 3, 4, 1)).astype(np.float32)
    x[5] = np.inf
    data = ms.dataset.NumpySlicesDataset({"x": x, "y": rng.integers(0, 4, len(x)).astype(np.int32)}, shuffle=True)
    return data.map(vision.RandomCrop((2, 3)), ["x"]).batch(4, drop_remainder=True)


def train(which: str, folder: Path, notes: Path, told: int | None) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if which == "plain" else ms.PYNATIVE_MODE)
    ms.set_seed(3)
    net = Flat()
    boost.replace_dropout(net)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = optim.Adam(net.trainable_params(), 0.01)
    manager = amp.DynamicLossScaleManager(2.0**8, 2, 5)
    config = {"boost": {"mode": "manual", "grad_accumulation": True}}
    config["grad_accumulation"] = {"grad_accumulation_step": 2}
    kwargs = {"boost_config_dict": config, "loss_scale_manager": manager}
    state = TrainingState(folder, every=EVERY)
    if which == "plain":
        cell = amp.build_train_network(net, optimizer, loss, **kwargs)
        ms.Model(cell).train(EPOCHS, dataset(0), [state, Counter(cell), Notes(notes, told)])
        wait = 0
    else:
        model = Model(net, loss, optimizer, {"loss"}, **kwargs)
        cell = model.train_network
        plateau = ReduceLROnPlateau("eval_loss", patience=1, min_delta=0.5, verbose=False)
        callbacks = [state, Counter(cell), LearningRateScheduler(lambda rate, step: rate * 0.97), plateau]
        callbacks += [EarlyStopping("eval_loss", patience=50), Notes(notes, told)]
        model.fit(EPOCHS, dataset(0), dataset(1), callbacks=callbacks)
        wait = callbacks[4].wait
    values = {p.name: p.asnumpy() for p in cell.get_parameters() if not is_scratch(p.name)}
    np.savez(notes.with_suffix(".npz"), steps=cell.steps_made, wait=wait, **values)


def forked(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def main() -> None:
    which, folder, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    draw = random.Random(seed)
    gc.freeze()  # as in tests/conftest.py
    whole = forked(lambda: train(which, folder / "whole", folder / "whole.txt", None))
    assert os.waitpid(whole, 0)[1] == 0
    for _ in range(KILLS):
        read, write = os.pipe()
        pid = forked(lambda: train(which, folder / "killed", folder / "killed.txt", write))  # noqa: B023
        os.close(write)
        for _ in range(draw.randint(EVERY + 1, 3 * EVERY)):
            if not os.read(read, 1):
                break
        time.sleep(draw.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        print("killed", flush=True)
    for _ in range(2):  # the second one has nothing to do
        assert os.waitpid(forked(lambda: train(which, folder / "killed", folder / "killed.txt", None)), 0)[1] == 0


if __name__ == "__main__":
    main()
