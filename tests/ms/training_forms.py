"""Not ours, as far as it knows: a script that trains in the forms that MindSpore's users write. argv[1]: the mode."""

import json
import sys

import mindspore as ms
import numpy as np
from mindspore import Model, Tensor, amp, nn, ops
from mindspore.train import Callback, LossMonitor

ms.set_context(mode=int(sys.argv[1]))
losses, kinds = {}, {}
rng = np.random.default_rng(3)
images = rng.standard_normal((12, 1, 6, 6)).astype(np.float32)
labels = rng.integers(0, 3, 12).astype(np.int32)
batches = [(Tensor(images[i : i + 4]), Tensor(labels[i : i + 4])) for i in (0, 4, 8)]
loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def note(form, outputs):
    kinds[form] = type(outputs).__name__
    loss = outputs[0] if isinstance(outputs, tuple) else outputs
    losses.setdefault(form, []).append(loss.asnumpy().tobytes().hex())


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.fc = nn.Dense(2, 3)

    def construct(self, x):
        return self.fc(ops.relu(self.bn(self.conv(x))).mean((2, 3)))


def made():
    ms.set_seed(5)
    net = Net()
    return net, nn.Momentum(net.trainable_params(), 0.1, 0.9)


class Noting(Callback):
    def on_train_step_end(self, run_context):
        note("model", run_context.original_args().net_outputs)


def with_model():
    net, optimizer = made()
    data = ms.dataset.NumpySlicesDataset((images, labels), shuffle=False).batch(4)
    model = Model(net, loss_fn, optimizer, metrics={"loss": nn.Loss()})
    model.train(2, data, callbacks=[Noting(), LossMonitor()])
    losses["eval"] = repr(model.eval(data))


def with_a_cell():
    net, optimizer = made()
    step = nn.TrainOneStepCell(network=nn.WithLossCell(net, loss_fn), optimizer=optimizer)
    step.set_train()
    assert isinstance(step, nn.TrainOneStepCell)
    for batch in batches:
        note("cell", step(*batch))


class Clipping(nn.TrainOneStepCell):
    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs, ops.fill(loss.dtype, loss.shape, self.sens))
        return ops.depend(loss, self.optimizer(ops.clip_by_global_norm(grads, 0.5)))


def with_a_subclass():
    net, optimizer = made()
    step = Clipping(nn.WithLossCell(net, loss_fn), optimizer, sens=2.0)
    for batch in batches:
        note("subclass", step(*batch))


def with_amp():
    net, optimizer = made()
    step = amp.build_train_network(net, optimizer, loss_fn, level="O0")
    for batch in batches:
        note("amp", step(*batch))


def with_a_function():
    net, optimizer = made()

    def forward(x, y):
        return loss_fn(net(x), y)

    value_and_grad = ms.value_and_grad(forward, None, optimizer.parameters)
    for batch in batches:
        loss, grads = value_and_grad(*batch)
        optimizer(grads)
        note("function", loss)


class TwoLosses(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, y):
        loss = loss_fn(self.net(x), y)
        return loss, 2 * loss


def with_two_losses():
    net, optimizer = made()
    step = nn.TrainOneStepCell(TwoLosses(net), optimizer)
    for batch in batches:
        note("two losses", step(*batch)[1])


def with_gradients():
    net, optimizer = made()
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer, return_grad=True)
    for batch in batches:
        note("gradients", step(*batch)[1]["fc.weight"])


for form in (with_model, with_a_cell, with_a_subclass, with_amp, with_a_function, with_two_losses, with_gradients):
    form()
print(json.dumps([losses, kinds]))
