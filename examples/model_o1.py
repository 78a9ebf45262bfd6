"""Model at level O1, with callbacks and an evaluation after each epoch.

Level O1 centralizes the gradients, and after 70 % of the steps it trains the head of the network alone, whose backward
pass is short. The plan says what it does here. BoostMonitor writes a log; ``boost-ext report`` makes a page of it.
"""

import mindspore as ms
import numpy as np
from mindspore import nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from boost_ext import Model, optim, report
from boost_ext.callbacks import BoostMonitor

EPOCHS, BATCH, LOG = 8, 32, "runs/model_o1.jsonl"
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(0)  # of the weights and of the order of the batches
images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    (images / 16).astype(np.float32), labels.astype(np.int32), test_size=0.2, random_state=0
)
train_set = ms.dataset.NumpySlicesDataset((x, y), ["image", "label"], shuffle=True).batch(BATCH, drop_remainder=True)
test_set = ms.dataset.NumpySlicesDataset((x_test, y_test), ["image", "label"], shuffle=False).batch(BATCH)

layers = [nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 128), nn.ReLU(), nn.Dense(128, 10)]
net = nn.SequentialCell(*layers)
loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = optim.Adam(net.trainable_params(), 2e-3)
model = Model(net, loss_fn, optimizer, metrics={"accuracy"}, boost_level="O1")
print(model.plan)

monitor = BoostMonitor(LOG, per_print_steps=train_set.get_dataset_size())
model.fit(EPOCHS, train_set, test_set, callbacks=[monitor])

run = report.read(LOG)
frozen = run.columns["frozen_share"]
_, accuracies = run.metrics["accuracy"]
print(f"{int((frozen > 0).sum())} of {len(run)} steps trained the head alone: {1 - frozen.max():.1%} of the weights")
print(f"test accuracy after each epoch: {', '.join(f'{a:.3f}' for a in accuracies)}")
print(f"the log is {LOG}; boost-ext report {LOG} makes a page of it")
