"""Averaged weights: what an exponential moving average of the weights is worth, beside the last weights.

The learning rate is high and never falls, so the last weights still jump about, and one epoch says little about the
next. Their average is better, and costs one native call a step.
"""

import mindspore as ms
import numpy as np
from mindspore import nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from boost_ext import Model, boost, optim

EPOCHS, BATCH = 6, 8
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(0)  # of the weights and of the order of the batches
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    (images / 16).astype(np.float32), labels.astype(np.int32), test_size=0.2, random_state=0
)
train_set = ms.dataset.NumpySlicesDataset((x, y), ["image", "label"], shuffle=True).batch(BATCH, drop_remainder=True)
test_set = ms.dataset.NumpySlicesDataset((x_test, y_test), ["image", "label"], shuffle=False).batch(BATCH)

net = nn.SequentialCell(nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 10))
loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = optim.Momentum(net.trainable_params(), 0.1, 0.9)
average = boost.ExponentialMovingAverage(0.995)
model = Model(net, loss_fn, optimizer, metrics={"accuracy", "loss"}, weight_average=average)

evaluations: list[list[float]] = []
for epoch in range(1, EPOCHS + 1):
    model.train(1, train_set)
    last = model.eval(test_set)
    with average.swapped_in():  # the network holds the averages inside
        averaged = model.eval(test_set)
        ms.save_checkpoint(net, "averaged.ckpt")
    evaluations.append([result[metric] for result in (last, averaged) for metric in ("accuracy", "loss")])
    print("epoch {}: last weights {:.3f}, loss {:.3f}; averages {:.3f}, loss {:.3f}".format(epoch, *evaluations[-1]))

mean = "mean of the epochs: last weights {:.3f}, loss {:.3f}; averages {:.3f}, loss {:.3f}"
print(mean.format(*np.mean(evaluations, axis=0)))
again = model.eval(test_set)["loss"] == evaluations[-1][1]
print(f"the last weights are back: {again}; the averages are saved in averaged.ckpt")
