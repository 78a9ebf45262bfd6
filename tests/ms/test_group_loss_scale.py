"""GroupLossScaleManager as a cell: gradients beside those of the plain network, its state, and what it refuses."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from tests.ms.group_networks import Half, HalfLoss, Net, batch, example, scales_of, with_loss
from tests.ms.tiers import in_graph_mode

from boost_ext import boost
from boost_ext.ms.loss_scale.group_loss_scale import (
    GroupLossScaleManager,
    GroupLossScaleUpdateCell,
    GroupUnscaleAndCheck,
)


def gradients(network: nn.Cell, *inputs: Tensor) -> dict[str, np.ndarray]:
    weights = ParameterTuple(network.trainable_params())
    _, grads = ms.value_and_grad(network, None, weights)(*inputs)
    return {w.name: g.asnumpy() for w, g in zip(weights, grads, strict=True)}


def test_gradients_are_scaled_by_group(mode: int) -> None:
    manager, net = example()
    manager.set_loss_scale_status(2, [1.0, 1.0])
    plain = gradients(with_loss(net), *batch())
    manager.set_loss_scale_status(2, [2.0**20, 2.0**7])
    scaled = gradients(with_loss(net), *batch())
    for name, grad in scaled.items():
        factor = 2.0**20 if "conv" in name else 2.0**7
        np.testing.assert_array_equal(grad, factor * plain[name], err_msg=name)


def test_the_network_computes_what_it_computed(mode: int) -> None:
    _, net = example()
    with_scales = net(batch()[0]).asnumpy()
    net.enhanced_amp = GroupLossScaleManager(1, [])
    np.testing.assert_array_equal(net(batch()[0]).asnumpy(), with_scales)


@pytest.mark.parametrize("dtype", [ms.float32, ms.float16, ms.bfloat16])
def test_the_boundary_keeps_values_and_dtype(mode: int, dtype: ms.dtype) -> None:
    manager = GroupLossScaleManager(8, [["a"], ["b"]])
    x = Tensor(np.float32([[1.5, -2], [np.inf, 0]])).astype(dtype)

    def forward(x):
        return manager(x, 1, 3)

    assert forward(x).dtype == dtype
    np.testing.assert_array_equal(forward(x).astype(ms.float32).asnumpy(), x.astype(ms.float32).asnumpy())

    class Weighted(nn.Cell):
        def construct(self, x, weights):
            return ops.cast(manager(x, 1, 3) * weights, ms.float32).sum()

    grad = ms.grad(Weighted())(x, Tensor(np.float32([[1, 2], [-3, 0]])).astype(dtype))
    assert grad.dtype == dtype
    np.testing.assert_array_equal(grad.astype(ms.float32).asnumpy(), [[8, 16], [-24, 0]])


@pytest.mark.parametrize("conversion", ["to_float", "O2", "O3"])
def test_scales_beyond_float16_in_a_float16_network(mode: int, conversion: str) -> None:
    """The gradients of the first group, 2**-27, are 0 in float16; with a scale of 2**24 they are there."""

    def network(scale: float) -> tuple[GroupLossScaleManager, nn.Cell]:
        manager = GroupLossScaleManager(scale, [["first.weight"], ["second.weight"]])
        half = Half(manager)
        half = half.to_float(ms.float16) if conversion == "to_float" else ms.amp.auto_mixed_precision(half, conversion)
        return manager, half

    x = Tensor(np.full((2, 4), 0.25, np.float32))
    exact = {"first.weight": 2 * 0.25 * 4 * 2.0**-17 * 2.0**-12, "second.weight": 2 * 4 * 0.25 * 2.0**-4 * 2.0**-12}
    _, half = network(1)
    assert not gradients(HalfLoss(half), x)["first.weight"].any()

    manager, half = network(1)
    manager.set_loss_scale_status(2, [2.0**24, 2.0**6])
    if conversion == "to_float":  # the levels convert the output back
        assert half(x).dtype == ms.float16
    for name, grad in gradients(HalfLoss(half), x).items():
        scale = {"first.weight": 2.0**24, "second.weight": 2.0**6}[name]
        np.testing.assert_array_equal(grad, np.full((4, 4), scale * exact[name]), err_msg=name)


@in_graph_mode
def test_level_O1_rewrites_the_network(mode: int) -> None:
    """MindSpore puts copies of all cells into a new network; they share the Parameters."""
    manager, net = example()
    converted = ms.amp.auto_mixed_precision(net, "O1")
    manager.require_in(converted)
    manager.set_loss_scale_status(2, [1.0, 1.0])
    plain = gradients(with_loss(converted), *batch())
    manager.set_loss_scale_status(2, [2.0**8, 2.0**5])
    for name, grad in gradients(with_loss(converted), *batch()).items():
        expected = (2.0**8 if "conv" in name else 2.0**5) * plain[name]
        np.testing.assert_allclose(grad, expected, rtol=1e-2, atol=2e-3 * abs(expected).max(), err_msg=name)


def test_boundaries_may_skip_groups(mode: int) -> None:
    """A residual connection from the first group into the third."""

    class Residual(nn.Cell):
        def __init__(self, manager: GroupLossScaleManager) -> None:
            super().__init__()
            self.a, self.b, self.c = (Parameter(Tensor(float(v)), name=n) for n, v in (("a", 2), ("b", 3), ("c", 5)))
            self.manager = manager

        def construct(self, x):
            x = self.a * self.manager(x, 0, 1)
            branch = self.manager(self.b * self.manager(x, 1, 2), 2, 3)
            return self.manager(self.c * (branch + self.manager(x, 1, 3)), 3, 4)

    manager = GroupLossScaleManager(1, [["a"], ["b"], ["c"]])
    manager.set_loss_scale_status(3, [16, 4, 64])
    grads = gradients(Residual(manager), Tensor(1.0))
    assert {n: float(g) for n, g in grads.items()} == {"a": 16 * 5 * 4, "b": 4 * 5 * 2, "c": 64 * 8}


def test_the_scales_are_parameters_of_the_network() -> None:
    for groups in (
        [],
        [["conv1.weight", "conv2.weight"], [f"fc{i}.{n}" for i in (1, 2, 3) for n in ("weight", "bias")]],
    ):
        manager = GroupLossScaleManager(512, groups)
        net = Net(manager)
        manager.loss_scale_groups = [[p.name for p in net.get_parameters() if "conv" in p.name], ["fc1.weight"]]
        state = [p for p in net.get_parameters() if "loss_scale" in p.name]
        names = ["loss_scale.group.0", "loss_scale.group.1", "loss_scale.found", "loss_scale.overflows"]
        assert [p.name for p in state] == names
        assert not any(p.requires_grad for p in state)
        assert scales_of(manager) == [512, 512]


def test_update_loss_scale_status(mode: int) -> None:
    manager = GroupLossScaleManager(100, [["a"], ["b"]], max_loss_scale=1000)
    assert manager.update_loss_scale_status(1, 2.0).asnumpy() == 200
    assert manager.update_loss_scale_status(1, Tensor(0.5, ms.float32)).asnumpy() == 100
    assert manager.update_loss_scale_status(0, 1e6).asnumpy() == 1000
    assert manager.update_loss_scale_status(1, 1e-6).asnumpy() == 1
    assert scales_of(manager) == [1000, 1]
    for layer in (-1, 2):
        with pytest.raises(ValueError, match=f"^update_loss_scale_status: layer must be from 0 to 1, got {layer}$"):
            manager.update_loss_scale_status(layer, 2.0)


def test_as_the_loss_scale_manager_of_the_reference() -> None:
    manager = GroupLossScaleManager(4096, [["a"]])
    assert manager.get_loss_scale() == 4096
    assert manager.get_update_cell() is manager
    assert manager.loss_scale_groups == [["a"]]
    assert manager.loss_scale_number == 1


A, B = (Parameter(Tensor([1.0]), name=n) for n in "ab")


@pytest.mark.parametrize(
    ("groups", "error", "text"),
    [
        (3, TypeError, " must be a list of lists of parameters, got int"),
        ("ab", TypeError, " must be a list of lists of parameters, got str"),
        ([A, B], TypeError, r"\[0\] must be a list of parameters, got Parameter"),
        (["a", "b"], TypeError, r"\[0\] must be a list of parameters, got str"),
        ([[A], []], ValueError, r"\[1\] must hold at least one parameter, got an empty list"),
        ([[A], [3]], TypeError, r"\[1\]\[0\] must be a Parameter or its name, got int"),
        ([[A], [B, A]], ValueError, r"\[1\]\[1\] must not be 'a', which loss_scale_groups\[0\]\[0\] is already"),
        ([[A], [B, "a"]], ValueError, r"\[1\]\[1\] must not be 'a', which loss_scale_groups\[0\]\[0\] is already"),
        ([[A, A]], ValueError, r"\[0\]\[1\] must not be 'a', which loss_scale_groups\[0\]\[0\] is already"),
    ],
)
def test_groups_that_are_refused(groups, error, text) -> None:
    with pytest.raises(error, match=f"^GroupLossScaleManager: loss_scale_groups{text}$"):
        GroupLossScaleManager(2, groups)
    manager = GroupLossScaleManager(2, [])
    with pytest.raises(error, match=f"^GroupLossScaleManager: loss_scale_groups{text}$"):
        manager.loss_scale_groups = groups
    assert manager.loss_scale_groups == []


@pytest.mark.parametrize("scale", [0, 0.5, -1, np.inf, np.nan, 2.0**65])
def test_scales_that_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"^GroupLossScaleManager: init_loss_scale must be finite, >= 1 and <= "):
        GroupLossScaleManager(scale, [])
    with pytest.raises(ValueError, match=r"^set_loss_scale_status: init_loss_scale must be finite, >= 1 and <= "):
        GroupLossScaleManager(2, [["a"], ["b"]]).set_loss_scale_status(2, [2, scale])
    with pytest.raises(TypeError, match=r"^GroupLossScaleManager: init_loss_scale must be a number, got str"):
        GroupLossScaleManager("2", [])


def test_status_that_does_not_fit_the_groups() -> None:
    manager = GroupLossScaleManager(2, [["a"], ["b"]])
    with pytest.raises(ValueError, match=r"^set_loss_scale_status: loss_scale_number must be 2, the groups, got 3$"):
        manager.set_loss_scale_status(3, 2)
    with pytest.raises(ValueError, match=r"^set_loss_scale_status: init_loss_scale must hold 2 scales, got 1$"):
        manager.set_loss_scale_status(2, [2])
    with pytest.raises(TypeError, match=r"^set_loss_scale_status: loss_scale_number must be an int, got float$"):
        manager.set_loss_scale_status(2.0, 2)


def test_groups_must_be_there_cover_and_stay() -> None:
    manager = GroupLossScaleManager(2, [])
    text = "GroupLossScaleManager: loss_scale_groups must be assigned before the training cell is made"
    with pytest.raises(ValueError, match=f"^{text}, got none$"):
        GroupUnscaleAndCheck(manager, [A])
    with pytest.raises(ValueError, match=f"^{text}, got none$"):
        GroupLossScaleUpdateCell(manager)
    manager.loss_scale_groups = [[B]]
    missing = r"loss_scale_groups must hold every trained parameter, \['a'\] are in none$"
    with pytest.raises(ValueError, match=rf"^GroupLossScaleManager: {missing}"):
        GroupUnscaleAndCheck(manager, [A, B])
    manager.loss_scale_groups = [[A], ["b"]]
    GroupUnscaleAndCheck(manager, [A, B])
    with pytest.raises(RuntimeError, match=f"^{text}$"):
        manager.loss_scale_groups = [[A, B]]
    assert manager.loss_scale_groups == [[A], ["b"]]


@pytest.mark.parametrize("layers", [(-1, 1), (0, 4), (4, 3)])
def test_layers_must_be_there(mode: int, layers: tuple[int, int]) -> None:
    manager = GroupLossScaleManager(2, [["a"], ["b"]])
    bad = next(layer for layer in layers if layer not in range(4))
    with pytest.raises(ValueError, match=rf"GroupLossScaleManager: a layer must be from 0 to 3, got {bad}"):
        manager(Tensor([1.0]), *layers)


def test_a_network_without_the_scales_is_refused() -> None:
    text = "GroupLossScaleManager: network must call this manager between its groups"
    manager, net = example()
    manager.require_in(with_loss(net))
    other = Net(GroupLossScaleManager(2, [["conv1.weight"]]))
    with pytest.raises(ValueError, match=f"^{text}"):
        manager.require_in(other)
    manager = GroupLossScaleManager(2, [])
    converted = ms.amp.auto_mixed_precision(Net(manager), "O1")
    manager.loss_scale_groups = [["a"], ["b"]]  # too late for the copy in the rewritten network
    with pytest.raises(ValueError, match=f"^{text}"):
        manager.require_in(converted)


def test_a_cell_that_does_not_take_the_scales_out() -> None:
    net = with_loss(example()[1])
    with pytest.raises(ValueError, match="must be that manager: nothing else takes its scales out"):
        boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
