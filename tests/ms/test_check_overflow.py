"""Training cells that do not look for inf and nan: ``check_overflow=False``."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from tests.ms.networks import Mlp, classes, mlp_batch

from boost_ext import amp, boost
from boost_ext.ms.step.pipeline import NOT_RUN

OPTIMIZERS = {
    "Momentum": lambda net: nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scale=4.0),
    "AdaMax": lambda net: nn.AdaMax(net.trainable_params(), 0.01, loss_scale=4.0),  # without a native step
}
LOSS = nn.SoftmaxCrossEntropyWithLogits(sparse=True)


def cell(net: nn.Cell, name: str, check_overflow: bool, mode: int) -> nn.Cell:
    compile = "step" if mode == ms.GRAPH_MODE else "off"
    made = OPTIMIZERS[name](net)
    return boost.BoostTrainOneStepCell(classes(net), made, 4.0, compile=compile, check_overflow=check_overflow)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_training_without_a_look(mode: int, name: str) -> None:
    nets = Mlp(), Mlp()
    unchecked, checked = (cell(net, name, on, mode) for net, on in zip(nets, (False, True), strict=True))
    for i in range(3):
        results = [made(*mlp_batch(i, 8)) for made in (unchecked, checked)]
        np.testing.assert_array_equal(*(loss.asnumpy() for loss, _, _ in results))
        assert not results[0][1].asnumpy()
    for ours, theirs in zip(*(net.trainable_params() for net in nets), strict=True):
        np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy(), err_msg=ours.name)
    assert (unchecked.pipelines[0].report.asnumpy()[:, 0] == NOT_RUN).all()
    observed = unchecked.observe()
    assert (observed["step"], observed["overflow"], observed["overflowed"]) == (3, None, [])
    assert observed["largest_gradient"] is None

    images, labels = mlp_batch(3, 8)
    _, overflow, _ = unchecked(images * float("inf"), labels)
    assert not overflow.asnumpy()
    assert np.isnan(nets[0].head.weight.asnumpy()).any()


def build(common: dict, **kwargs) -> nn.Cell:
    net = Mlp()
    return amp.build_train_network(
        net, OPTIMIZERS["Momentum"](net), LOSS, boost_config_dict={"common": common}, **kwargs
    )


def test_the_key_and_the_plan() -> None:
    fixed = amp.FixedLossScaleManager(4.0, drop_overflow_update=False)
    on = build({}, loss_scale_manager=fixed).plan["check_overflow"]
    assert (on.status, on.reason) == ("applied", "a step with inf or nan in its gradients changes nothing")
    made = build({"check_overflow": False}, loss_scale_manager=fixed)
    off = made.plan["check_overflow"]
    assert (off.status, off.reason) == ("skipped", "check_overflow is False: inf and nan reach the weights")
    made(*mlp_batch(0, 8))
    assert made.observe()["overflow"] is None
    clipped = build({"check_overflow": False}, loss_scale_manager=fixed, clip_norm=1.0).plan["check_overflow"]
    assert (clipped.status, clipped.reason) == ("applied", "clip_norm reads the gradients anyway")


def test_a_loss_scale_needs_it() -> None:
    net = Mlp()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    message = "check_overflow must be True with a loss scale that it moves, got False"
    off = {"common": {"check_overflow": False}}
    with pytest.raises(ValueError, match=f"^build_train_network: {message}"):
        amp.build_train_network(
            net, optimizer, LOSS, loss_scale_manager=amp.DynamicLossScaleManager(), boost_config_dict=off
        )
    _, without = boost.AutoBoost("O0", off).network_auto_process_train(net, optimizer)
    with pytest.raises(ValueError, match=f"^BoostTrainOneStepWithLossScaleCell: {message}"):
        boost.BoostTrainOneStepWithLossScaleCell(classes(net), without, Tensor(8.0))
    with pytest.raises(TypeError, match="BoostTrainOneStepCell: check_overflow must be a bool, got int"):
        boost.BoostTrainOneStepCell(classes(net), optimizer, check_overflow=0)
