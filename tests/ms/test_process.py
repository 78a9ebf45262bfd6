"""Parameter groups, and optimizers constructed again over them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.optimizers import (
    OPTIMIZERS,
    assert_close,
    make_grads,
    make_parameters,
    schedule,
    values,
)

from boost_ext.ms.core.common_head import CommonHeadLastFN
from boost_ext.ms.surgery.process import OptimizerProcess, ParameterProcess


class Net(nn.Cell):
    """3 input channels (not divisible by 16), grouped and depthwise convolutions, an embedding, and an FN head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, has_bias=True)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, group=2)
        self.depthwise = nn.Conv2d(8, 8, 3, group=8)
        self.dense = nn.Dense(8, 6)
        self.words = nn.Embedding(10, 6)
        self.own = Parameter(Tensor(np.ones((6, 6), np.float32)), name="own")
        self.vector = Parameter(Tensor(np.ones(6, np.float32)), name="vector")
        self.head = CommonHeadLastFN(6, 4)


CENTRALIZED = {"conv.weight", "dense.weight", "own"}


def names(parameters) -> list[str]:
    return [p.name for p in parameters]


def centralized(groups) -> set[str]:
    return {n for group in groups if group.get("grad_centralization") for n in names(group["params"])}


def optimizer_flags(optimizer: nn.Optimizer) -> set[str]:
    flags = zip(optimizer.parameters, optimizer.grad_centralization_flags, strict=True)
    return {p.name for p, flag in flags if flag}


def test_which_weights_are_centralized() -> None:
    net = Net()
    process = OptimizerProcess(nn.Momentum(net.trainable_params(), 0.1, 0.9))
    process.add_grad_centralization(net)
    assert centralized(process.origin_params) == CENTRALIZED
    new = process.generate_new_optimizer()
    assert isinstance(new, nn.Momentum)
    assert [id(p) for p in new.parameters] == [id(p) for p in net.trainable_params()]
    assert optimizer_flags(new) == CENTRALIZED


def test_groups_keep_their_settings_and_parameters() -> None:
    net = Net()
    rate = schedule()
    params = net.trainable_params()
    groups = [
        {"params": params[:4], "lr": rate, "weight_decay": 0.02},
        {"params": [net.dense.weight, net.dense.bias], "grad_centralization": False},
        {"params": [p for p in params[4:] if "dense" not in p.name]},
        {"order_params": params},
    ]
    process = OptimizerProcess(nn.Momentum(groups, 0.1, 0.9))
    process.add_grad_centralization(net)
    assert centralized(process.origin_params) == {"conv.weight", "own"}
    new = process.generate_new_optimizer()
    assert [id(p) for p in new.parameters] == [id(p) for p in params]
    assert all(new.learning_rate[i] is rate for i in range(4))
    assert [float(w.asnumpy()) for w in new.weight_decay] == pytest.approx([0.02] * 4 + [0.0] * (len(params) - 4))
    assert groups[0] == {"params": params[:4], "lr": rate, "weight_decay": 0.02}, "the user's dict stays as it is"


def test_a_plain_list_keeps_its_weight_decay(mode: int) -> None:
    """In a group MindSpore decays everything, in a plain list not beta and gamma."""
    ours, theirs = make_parameters(), make_parameters()
    process = OptimizerProcess(OPTIMIZERS["Momentum"](ours))
    process.origin_params = ParameterProcess.generate_group_params(ours, process.origin_params)
    new, reference = process.generate_new_optimizer(), OPTIMIZERS["Momentum"](theirs)
    for step in range(3):
        new(make_grads(step))
        reference(make_grads(step))
    assert_close(values(ours), values(theirs))


def test_centralization_keeps_the_weight_decay_of_ftrl() -> None:
    """FTRL decays gamma in a plain list too."""
    net = nn.SequentialCell(nn.Dense(3, 4), nn.LayerNorm((4,)))
    process = OptimizerProcess(nn.FTRL(net.trainable_params(), weight_decay=0.01))
    process.add_grad_centralization(net)
    assert [float(w.asnumpy()) for w in process.generate_new_optimizer().weight_decay] == pytest.approx([0.01] * 4)


def test_a_network_that_is_not_the_optimizers() -> None:
    process = OptimizerProcess(nn.Momentum(Net().trainable_params(), 0.1, 0.9))
    with pytest.raises(ValueError, match=r"^OptimizerProcess: network must hold parameters of the optimizer"):
        process.add_grad_centralization(Net())


def test_build_params_dict() -> None:
    net = Net()
    cells = OptimizerProcess.build_params_dict(net)
    assert cells[id(net.conv.weight)] is net.conv
    assert cells[id(net.own)] is net
    assert set(cells) == {id(p) for p in net.get_parameters()}


def test_lars_is_unwrapped_and_wrapped_again() -> None:
    net = Net()
    lars = nn.LARS(
        nn.Momentum(net.trainable_params(), schedule(), 0.9, weight_decay=0.01, loss_scale=2.0),
        epsilon=1e-4,
        coefficient=0.02,
        lars_filter=lambda x: "conv" in x.name,
    )
    process = OptimizerProcess(lars)
    process.add_grad_centralization(net)
    new = process.generate_new_optimizer()
    assert type(new) is nn.LARS
    assert isinstance(new.opt, nn.Momentum)
    assert new.opt is not lars.opt
    assert optimizer_flags(new.opt) == CENTRALIZED
    assert new.lars_flag == lars.lars_flag
    assert new.lars.attrs["epsilon"] == pytest.approx(1e-4)
    assert new.opt.learning_rate is lars.opt.learning_rate
    assert [bool(f) for f in new.decay_flags] == [
        "gamma" not in p.name and "beta" not in p.name for p in new.parameters
    ]
    assert new.loss_scale == 2.0


def test_optimizer_errors() -> None:
    with pytest.raises(TypeError, match=r"^OptimizerProcess: opt must be an Optimizer, got Dense$"):
        OptimizerProcess(nn.Dense(2, 2))
    process = OptimizerProcess(OPTIMIZERS["Momentum"](make_parameters()))
    process.origin_params = []
    with pytest.raises(ValueError, match=r"^OptimizerProcess: origin_params must not be empty$"):
        process.generate_new_optimizer()


@pytest.mark.parametrize(
    ("split", "expected"),
    [(None, [1, 1, 2, 2]), ([], [1, 1, 2, 2]), (3, [1, 1, 1, 2]), ([1, 3], [1, 2, 2, 3]), ([50, 100], [1, 1, 1, 1])],
)
def test_assign_parameter_group(split, expected: list[int]) -> None:
    parameters = make_parameters()
    assert ParameterProcess().assign_parameter_group(parameters, split) is parameters
    assert [p.comm_fusion for p in parameters] == expected


def test_fusion_numbers_go_on() -> None:
    process = ParameterProcess()
    first, second = make_parameters(), make_parameters()
    process.assign_parameter_group(first, 2)
    process.assign_parameter_group(second, [0, 1])
    assert [p.comm_fusion for p in (*first, *second)] == [1, 1, 2, 2, 3, 4, 4, 4]


def test_assign_errors() -> None:
    process, parameters = ParameterProcess(), make_parameters()
    owner = "ParameterProcess.assign_parameter_group"
    with pytest.raises(TypeError, match=rf"^{owner}: parameters must be a list or tuple of Parameters, got dict$"):
        process.assign_parameter_group({})
    for wrong in (True, ["1"], [1.5]):
        with pytest.raises(TypeError, match=rf"^{owner}: split_point must be an int or a list of them, got"):
            process.assign_parameter_group(parameters, wrong)
    with pytest.raises(ValueError, match=rf"^{owner}: split_point must be >= 0, got -1$"):
        process.assign_parameter_group(parameters, -1)
    assert [p.comm_fusion for p in parameters] == [1] * 4


def test_generate_group_params() -> None:
    conv, gamma, weight, bias = make_parameters()
    multiplier = Parameter(Tensor([1.0]), name="fc.multiplier")
    again = Parameter(Tensor(np.ones((5, 3), np.float32)), name="fc.weight")
    rate = schedule()
    groups = [
        {"params": [gamma], "weight_decay": 0.0},
        {"params": [weight, conv], "weight_decay": 0.1, "lr": rate},
        {"params": [bias]},
        {"order_params": [conv, gamma, weight, bias]},
    ]
    now = [conv, again, bias, multiplier]
    result = ParameterProcess.generate_group_params(now, groups)
    assert result == [
        {"params": [again, conv], "weight_decay": 0.1, "lr": rate},
        {"params": [bias]},
        {"params": [multiplier], "weight_decay": 0.1, "lr": rate},
        {"order_params": now},
    ]
    assert result[0]["lr"] is rate
    assert result[0]["params"][0] is again
    assert len(groups[1]["params"]) == 2
    assert len(nn.Momentum(result, 0.1, 0.9).parameters) == 4


def test_generate_group_params_of_a_list() -> None:
    parameters = make_parameters()
    without_gamma = [parameters[0], *parameters[2:]]
    assert ParameterProcess.generate_group_params(without_gamma, parameters) == [{"params": without_gamma}]
    assert ParameterProcess.generate_group_params(parameters, parameters) == [
        {"params": without_gamma},
        {"params": [parameters[1]], "weight_decay": 0.0},
        {"order_params": parameters},
    ]


def test_generate_errors() -> None:
    parameters = make_parameters()
    owner = "ParameterProcess.generate_group_params"
    with pytest.raises(ValueError, match=rf"^{owner}: origin_params must not be empty$"):
        ParameterProcess.generate_group_params(parameters, [])
    with pytest.raises(
        TypeError, match=rf"^{owner}: origin_params must be a list of Parameters or dicts, got int in it$"
    ):
        ParameterProcess.generate_group_params(parameters, [1])
    with pytest.raises(TypeError, match=rf"^{owner}: parameters must be a list of Parameters, got dict in it$"):
        ParameterProcess.generate_group_params([{"params": parameters}], parameters)


def example(docstring: str) -> str:
    return "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) ?(.*)$", docstring, re.MULTILINE))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("cls", [OptimizerProcess, ParameterProcess])
def test_examples(cls: type) -> None:
    scope: dict = {}
    exec(example(cls.__doc__), scope)
    if cls is ParameterProcess:
        assert names(scope["group_params"][0]["params"]) == ["0.weight", "0.bias"]
        return
    grads = tuple(Tensor(np.ones(p.shape, np.float32)) for p in scope["optimizer"].parameters)
    before = {p.name: p.asnumpy().copy() for p in scope["optimizer"].parameters}
    scope["optimizer"](grads)
    moved = {p.name for p in scope["optimizer"].parameters if not np.array_equal(p.asnumpy(), before[p.name])}
    assert moved == {"3.bias"}, "a gradient of ones has nothing but its mean"


@pytest.mark.usefixtures("mode")
def test_the_network_of_the_reference_documentation() -> None:
    """A weight of a cell of one's own, multiplied from the right."""

    class Product(nn.Cell):
        def __init__(self, in_features: int, out_features: int) -> None:
            super().__init__()
            self.weight = Parameter(Tensor(np.ones([in_features, out_features], np.float32)), name="weight")
            self.weight2 = Parameter(Tensor(np.ones([in_features, out_features], np.float32)), name="weight2")

        def construct(self, x: Tensor) -> Tensor:
            return ops.matmul(x, self.weight) + ops.matmul(x, self.weight2)

    network = Product(16, 10)
    process = OptimizerProcess(nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9))
    process.add_grad_centralization(network)
    assert optimizer_flags(process.generate_new_optimizer()) == {"weight", "weight2"}
    first = network.trainable_params()[:1]
    assert ParameterProcess.generate_group_params(first, network.trainable_params()) == [{"params": first}]
