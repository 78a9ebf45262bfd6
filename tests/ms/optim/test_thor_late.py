"""A thor that is made for a network after the Model or the cell that trains it."""

import numpy as np
import pytest
from mindspore import Tensor, nn
from tests.ms.networks import Mlp, classes, mlp_batch

from boost_ext import Model, optim
from boost_ext.boost import BoostTrainOneStepCell

MESSAGE = (
    r"^training step: optimizer must be the thor that the network gathers for, got another one: thor\(net, ...\) was "
    r"called for this network before or after, and converted its layers. Give what it returned to a new Model or "
    r"training cell, or train another network without it$"
)


def make_thor(net: nn.Cell) -> nn.Optimizer:
    return optim.thor(net, Tensor(0.1), 0.03, 0.9, batch_size=8, frequency=2)


@pytest.mark.parametrize("first", ["Momentum", "thor"])
def test_is_noticed_at_the_first_step(mode: int, first: str) -> None:
    net = Mlp()
    optimizer = make_thor(net) if first == "thor" else nn.Momentum(net.trainable_params(), 0.1, 0.9)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(net, loss, optimizer)
    late = make_thor(net)
    before = net.head.weight.asnumpy().copy()
    with pytest.raises(ValueError, match=MESSAGE):
        model.train_network(*mlp_batch(0, 8))
    np.testing.assert_array_equal(net.head.weight.asnumpy(), before)
    with pytest.raises(ValueError, match=MESSAGE):  # also where the network was converted before
        BoostTrainOneStepCell(classes(net), nn.SGD(net.trainable_params(), 0.1))(*mlp_batch(0, 8))
    # What the message asks for.
    Model(net, loss, late).train_network(*mlp_batch(0, 8))
    assert int(late.global_step.asnumpy()[0]) == 1
    assert np.any(net.head.weight.asnumpy() != before)
