"""A training step of your own, as the trainers of model collections write it, with the cell of boost_ext as its base.

The construct is the trainer's: it scales the loss, computes gradients in float16, clips them, and skips the update on
overflow. Only the base class is replaced. That brings the check for inf and nan, which MindSpore does not have on a
CPU, one state for the loss scale, and an optimizer that is one native call.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from boost_ext import optim
from boost_ext.amp import DynamicLossScaleManager
from boost_ext.boost import BoostTrainOneStepWithLossScaleCell

EPOCHS, BATCH = 6, 32


class TrainStep(BoostTrainOneStepWithLossScaleCell):  # was nn.TrainOneStepWithLossScaleCell
    """Clips by the global norm, and returns the loss and whether the step was skipped."""

    def __init__(self, network: nn.Cell, optimizer: nn.Cell, scale_sense: nn.Cell, clip_norm: float) -> None:
        super().__init__(network, optimizer, scale_sense)
        self.clip_norm = clip_norm

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        loss = self.network(*inputs)
        status, scale = self.start_overflow_check(loss, self.scale_sense)
        grads = self.grad(self.network, self.weights)(*inputs, ops.ones_like(loss) * scale.astype(loss.dtype))
        grads = self.grad_reducer(self.hyper_map(ops.partial(ops.mul, 1 / scale), grads))
        overflow = self.process_loss_scale(self.get_overflow_status(status, grads))
        if not overflow:
            grads = ops.clip_by_global_norm(grads, self.clip_norm)
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, overflow


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(0)
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    (images / 16).astype(np.float32), labels.astype(np.int32), test_size=0.2, random_state=0
)
net = nn.SequentialCell(nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 10)).to_float(ms.float16)
loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
manager = DynamicLossScaleManager(2.0**24, 2, 50)  # float16 overflows at this scale
optimizer = optim.AdamWeightDecay(net.trainable_params(), 2e-3, weight_decay=0.01)
step = TrainStep(nn.WithLossCell(net, loss_fn), optimizer, manager.get_update_cell(), clip_norm=1.0).set_train()

rng, skipped = np.random.default_rng(0), 0
losses: list[float] = []
for _ in track(range(EPOCHS), "training", transient=True, console=Console(stderr=True)):
    order = rng.permutation(len(x))
    for start in range(0, len(x) - BATCH + 1, BATCH):
        batch = order[start : start + BATCH]
        loss, overflow = step(Tensor(x[batch]), Tensor(y[batch]))
        losses.append(float(loss.asnumpy()))
        skipped += bool(overflow.asnumpy())
accuracy = (net(Tensor(x_test)).asnumpy().argmax(axis=1) == y_test).mean()
print(f"{skipped} of {len(losses)} steps skipped; loss scale 2^24 -> 2^{np.log2(manager.get_loss_scale()):.0f}")
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, test accuracy {accuracy:.3f}")
