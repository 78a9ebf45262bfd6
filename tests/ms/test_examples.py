"""The examples of the documentation of mindspore.boost, with ``boost_ext`` for ``mindspore`` and what they leave
undefined filled in."""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.nn import WithLossCell

from boost_ext import boost
from boost_ext.boost import AutoBoost, OptimizerProcess, ParameterProcess, freeze_cell

pytestmark = pytest.mark.usefixtures("mode")
size, in_features, out_features = 16, 16, 10


class Net(nn.Cell):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones([in_features, out_features]).astype(np.float32)), name="weight")
        self.matmul = ops.MatMul()

    def construct(self, x):
        return self.matmul(x, self.weight)


class TwoWeights(nn.Cell):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones([in_features, out_features]).astype(np.float32)), name="weight")
        self.weight2 = Parameter(Tensor(np.ones([in_features, out_features]).astype(np.float32)), name="weight2")
        self.matmul = ops.MatMul()
        self.matmul2 = ops.MatMul()

    def construct(self, x):
        return self.matmul(x, self.weight) + self.matmul2(x, self.weight2)


def batch():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((size, in_features)).astype(np.float32)
    return Tensor(inputs), Tensor(np.zeros([size, out_features]).astype(np.float32))


def momentum(net):
    return nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)


def test_auto_boost(tmp_path: Path):
    boost_config_dict = {"boost": {"mode": "auto"}}
    assert AutoBoost("O1", boost_config_dict).boost_config["less_bn"]
    boost_json = tmp_path / "boost_config.json"
    boost_json.write_text(json.dumps(boost_config_dict))
    with open(boost_json) as fp:
        boost_config_dict = json.load(fp)
    auto = AutoBoost("O1", boost_config_dict)
    net = Net(in_features, out_features)
    network, optimizer = auto.network_auto_process_train(net, momentum(net))
    cell = boost.BoostTrainOneStepCell(WithLossCell(network, nn.MSELoss()), optimizer)
    assert np.isfinite(cell(*batch())[0].asnumpy())
    assert auto.network_auto_process_eval(network) is network


def test_optimizer_process():
    network = Net(in_features, out_features)
    optimizer_process = OptimizerProcess(momentum(network))
    optimizer_process.add_grad_centralization(network)
    optimizer = optimizer_process.generate_new_optimizer()
    assert isinstance(optimizer, nn.Momentum)
    before = network.weight.asnumpy().copy()
    grad = np.random.default_rng(0).standard_normal(before.shape).astype(np.float32)
    optimizer((Tensor(grad),))
    expected = before - 0.1 * (grad - grad.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(network.weight.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_parameter_process():
    net = TwoWeights(in_features, out_features)
    new_parameter = net.trainable_params()[:1]
    parameter_process = ParameterProcess()
    group_params = parameter_process.generate_group_params(new_parameter, net.trainable_params())
    assert [[p.name for p in group["params"]] for group in group_params] == [["weight"]]
    assert parameter_process.assign_parameter_group(net.trainable_params()) == net.trainable_params()


class MyWithLossCell(nn.Cell):
    def __init__(self, backbone, loss_fn):
        super().__init__(auto_prefix=False)
        self._backbone = backbone
        self._loss_fn = loss_fn

    def construct(self, x, label):
        out = self._backbone(x)
        return self._loss_fn(out, label)

    @property
    def backbone_network(self):
        return self._backbone


@pytest.mark.parametrize("with_loss", [nn.WithLossCell, MyWithLossCell])
def test_boost_train_one_step_cell(with_loss):
    net = Net(in_features, out_features)
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(reduction="mean")
    train_net = boost.BoostTrainOneStepCell(with_loss(net, loss_fn), momentum(net))
    inputs, _ = batch()
    loss, overflow, scale = train_net(inputs, Tensor(np.eye(size, out_features, dtype=np.float32)))
    assert np.isfinite(loss.asnumpy())
    assert (bool(overflow.asnumpy()), float(scale.asnumpy())) == (False, 1.0)


def test_boost_train_one_step_with_loss_scale_cell_with_a_cell():
    net = Net(in_features, out_features)
    net_with_loss = WithLossCell(net, nn.MSELoss())
    manager = nn.DynamicLossScaleUpdateCell(loss_scale_value=2**12, scale_factor=2, scale_window=1000)
    train_network = boost.BoostTrainOneStepWithLossScaleCell(net_with_loss, momentum(net), scale_sense=manager)
    inputs = Tensor(np.ones([out_features, in_features]), ms.float32)
    labels = Tensor(np.ones([out_features]), ms.float32)
    _, overflow, scale = train_network(inputs, labels)
    assert (bool(overflow.asnumpy()), float(scale.asnumpy())) == (False, 4096.0)


def test_boost_train_one_step_with_loss_scale_cell_with_a_tensor():
    """The largest float32 as the scale: the gradients overflow."""
    net = Net(in_features, out_features)
    net_with_loss = WithLossCell(net, nn.MSELoss())
    inputs = Tensor(np.ones([size, in_features]).astype(np.float32))
    label = Tensor(np.zeros([size, out_features]).astype(np.float32))
    scaling_sens = Tensor(np.full((1), np.finfo(np.float32).max), dtype=ms.float32)
    train_network = boost.BoostTrainOneStepWithLossScaleCell(net_with_loss, momentum(net), scale_sense=scaling_sens)
    _, overflow, _ = train_network(inputs, label)
    assert overflow.asnumpy()
    np.testing.assert_array_equal(net.weight.asnumpy(), 1.0)


def test_less_bn():
    net = Net(in_features, out_features)
    train_network = boost.LessBN(WithLossCell(net, nn.MSELoss()))
    assert train_network(*batch()).shape == ()


def test_gradient_freeze():
    net = Net(in_features, out_features)
    gradient_freeze_class = boost.GradientFreeze(10, 1, 0.5, 2000)
    network, optimizer = gradient_freeze_class.freeze_generate(WithLossCell(net, nn.MSELoss()), momentum(net))
    assert network(*batch()).shape == ()
    assert isinstance(optimizer, boost.FreezeOpt)


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, boost.FreezeOpt], ids=["optimizer", "FreezeOpt"])
def test_freeze_cell(wrap):
    """The documented call passes an optimizer that is no FreezeOpt."""
    network = Net(in_features, out_features)
    grad = ops.GradOperation(get_by_list=True, sens_param=True)
    loss = WithLossCell(network, nn.MSELoss())
    freeze_nets = freeze_cell(False, loss, wrap(momentum(network)), 1.0, grad, False, None, None, 1)
    assert len(freeze_nets) == 1
    assert np.isfinite(freeze_nets[0](*batch()).asnumpy())
    assert np.any(network.weight.asnumpy() != 1)
