"""Second-order training in a subspace: DimReduce on a regression.

A network draws the lower half of a digit from its upper half. A first training by Adam leaves checkpoints. The main
components of these checkpoints span a subspace of few dimensions, in which DimReduce trains the network again, from the
start, by quasi-Newton steps with a line search.
"""

import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

from boost_ext import boost, optim
from boost_ext.config import DimReduceConfig

ADAM_STEPS, CHECKPOINT_EVERY, COMPONENTS, STEPS = 200, 5, 16, 30
ms.set_context(mode=ms.GRAPH_MODE)
images = (load_digits().data / 16).astype(np.float32)
upper, lower = Tensor(images[:, :32]), Tensor(images[:, 32:])  # one batch: the line search compares losses


def new_network() -> nn.Cell:
    ms.set_seed(0)  # the same weights each time
    return nn.SequentialCell(nn.Dense(32, 64), nn.Tanh(), nn.Dense(64, 32))


with tempfile.TemporaryDirectory() as folder:
    checkpoints = Path(folder, "checkpoints")
    checkpoints.mkdir()
    net = new_network()
    step = boost.BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optim.Adam(net.trainable_params(), 3e-3))
    losses: list[float] = []
    for i in track(range(ADAM_STEPS), "Adam", transient=True, console=Console(stderr=True)):
        if i % CHECKPOINT_EVERY == 0:
            ms.save_checkpoint(net, str(checkpoints / f"{i}.ckpt"))
        losses.append(float(step(upper, lower)[0].asnumpy()))
    print(f"Adam: loss {losses[0]:.4f} -> {losses[STEPS - 1]:.4f} in {STEPS} steps, {losses[-1]:.4f} in {ADAM_STEPS}")

    net = new_network()
    config = DimReduceConfig(
        n_components=COMPONENTS, weight_load_dir=str(checkpoints), pca_mat_path=str(Path(folder, "pca.safetensors"))
    )
    sgd = nn.SGD(net.trainable_params(), 1.0)
    step = boost.BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), sgd, dim_reduce=config)
    losses, accepted = [], 0
    for _ in track(range(STEPS), "DimReduce", transient=True, console=Console(stderr=True)):
        losses.append(float(step(upper, lower)[0].asnumpy()))
        search = step.observe()["line_search"]
        accepted += bool(search and search["accepted"])
    weights = sum(p.size for p in net.trainable_params())
    print(f"DimReduce: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {STEPS} steps,")
    print(f"in {COMPONENTS} of {weights} dimensions; the line search accepted {accepted} steps")
