"""What GroupLossScaleManager refuses."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests.ms.group_networks import Net, example, with_loss

from boost_ext import boost
from boost_ext.ms.group_loss_scale import GroupLossScaleManager, GroupLossScaleUpdateCell, GroupUnscaleAndCheck

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
