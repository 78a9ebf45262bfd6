"""Averaged weights: what an exponential moving average of the weights is worth, beside the last weights.

The learning rate is high and never falls, so the last weights still jump about. Their average is better, and costs one
native call a step.
"""

import mindspore as ms
import numpy as np
from mindspore import nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from boost_ext import Model, boost, optim
from boost_ext.callbacks import BoostMonitor

EPOCHS, BATCH = 10, 8
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
optimizer = optim.Momentum(net.trainable_params(), 0.07, 0.9)
average = boost.ExponentialMovingAverage(0.995)
model = Model(net, loss_fn, optimizer, metrics={"accuracy", "loss"}, weight_average=average)
model.train(EPOCHS, train_set, callbacks=[BoostMonitor(per_print_steps=2 * train_set.get_dataset_size())])

last = model.eval(test_set)
with average.swapped_in():  # the network holds the averages inside
    averaged = model.eval(test_set)
    ms.save_checkpoint(net, "averaged.ckpt")
again = model.eval(test_set)
for name, result in (("last weights", last), ("averaged weights", averaged)):
    print(f"{name}: test accuracy {result['accuracy']:.3f}, test loss {result['loss']:.4f}")
print(f"the last weights are back: {again == last}; the averages are saved in averaged.ckpt")
