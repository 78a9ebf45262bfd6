"""A training that is killed and started again ends with the bits of a training that was not.

The script starts itself as a child process, kills it in the middle as a crash would, and starts it again. One callback,
TrainingState, is all that the training needs for it. At the end a third process trains without an interruption.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

EPOCHS, BATCH, EVERY = 12, 32, 40
KILLED_AT = "epoch: 3 step: 12,"  # step 124 of 672


def train(folder: Path) -> None:
    import mindspore as ms
    import numpy as np
    from mindspore import nn
    from sklearn.datasets import load_digits

    from boost_ext import Model, optim
    from boost_ext.callbacks import TrainingState

    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(0)  # of the weights and of the order of the batches
    images, labels = load_digits(return_X_y=True)
    data = ((images / 16).astype(np.float32), labels.astype(np.int32))
    dataset = ms.dataset.NumpySlicesDataset(data, ["image", "label"], shuffle=True)
    net = nn.SequentialCell(nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 10))
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = optim.Adam(net.trainable_params(), 1e-3)
    callbacks = [TrainingState(folder, every=EVERY), ms.LossMonitor()]
    Model(net, loss_fn, optimizer).train(EPOCHS, dataset.batch(BATCH, drop_remainder=True), callbacks)
    bits = b"".join(p.asnumpy().tobytes() for p in optimizer.get_parameters())  # the weights, and Adam's state
    print("sha256", hashlib.sha256(bits).hexdigest())


def start(folder: Path, killed_at: str | None = None) -> list[str]:
    """The lines that a training printed, until it was complete or killed."""
    lines: list[str] = []
    # The small pipe makes the child wait for its reader, so that it cannot be complete before it is killed.
    command = [sys.executable, "-u", __file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pipesize=4096) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line.strip())
            if killed_at is not None and line.startswith(killed_at):
                child.kill()
    return lines


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        killed = start(Path(folder, "killed"), KILLED_AT)
        print(f"killed at {KILLED_AT.rstrip(',')}; it was complete: {killed[-1].startswith('sha256')}")
        resumed = start(Path(folder, "killed"))
        print(next(line for line in resumed if "resumed" in line))
        whole = start(Path(folder, "whole"))
        print(f"weights and state of Adam have the same bits as without the kill: {resumed[-1] == whole[-1]}")
