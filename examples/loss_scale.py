"""A float16 training that overflows and recovers, and a page that shows it.

The loss scale starts far too large. The first steps overflow, are skipped and halve the scale, until gradients fit into
float16. Then it grows again, and some later step overflows. The page has the loss scale, the steps that overflowed, and
the names of the gradients. It needs matplotlib: ``pip install 'boost_ext[report]'``.
"""

import mindspore as ms
import numpy as np
from mindspore import nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from boost_ext import Model, optim, report
from boost_ext.amp import DynamicLossScaleManager
from boost_ext.callbacks import BoostMonitor

EPOCHS, BATCH, FIRST_SCALE, LOG = 6, 32, 2.0**24, "runs/loss_scale.jsonl"
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
optimizer = optim.Momentum(net.trainable_params(), 0.05, 0.9)
manager = DynamicLossScaleManager(FIRST_SCALE, scale_factor=2, scale_window=20)
model = Model(net, loss_fn, optimizer, {"accuracy"}, amp_level="O3", loss_scale_manager=manager)
model.train(EPOCHS, train_set, callbacks=[BoostMonitor(LOG, per_print_steps=train_set.get_dataset_size())])

run = report.read(LOG)
overflows = np.flatnonzero(run.columns["overflow"]) + 1
print(f"{len(overflows)} of {len(run)} steps overflowed and were skipped: {', '.join(map(str, overflows[:20]))}")
exponents = np.log2([FIRST_SCALE, run.columns["loss_scale"].min(), run.columns["loss_scale"][-1]])
print("loss scale: first 2^{:.0f}, lowest 2^{:.0f}, last 2^{:.0f}".format(*exponents))
print(f"first to overflow: {run.overflowed[0][1].name}")
print(f"test accuracy {model.eval(test_set)['accuracy']:.3f}; page: {report.write([run], 'runs/loss_scale.html')}")
