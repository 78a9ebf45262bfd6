"""What the managers refuse, and with which words."""

from __future__ import annotations

import math
from typing import Any

import pytest
from mindspore import Tensor

from boost_ext.ms.loss_scale import DynamicLossScaleManager, FixedLossScaleManager
from boost_ext.ms.loss_scale_update import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell

NUMBERS: list[tuple[Any, type[Exception], str]] = [
    (math.nan, ValueError, "got nan"),
    (math.inf, ValueError, "got inf"),
    (0.5, ValueError, "got 0.5"),
    (-1, ValueError, "got -1"),
    (10**400, ValueError, "must be finite, >= 1"),
    (3.5e38, ValueError, "got 3.5e"),
    (True, TypeError, "must be a number, got bool"),
    ("128", TypeError, "must be a number, got str"),
    (None, TypeError, "must be a number, got NoneType"),
]


@pytest.mark.parametrize(("value", "error", "message"), NUMBERS)
def test_scales_refused(value: Any, error: type[Exception], message: str) -> None:
    for make, name in (
        (FixedLossScaleManager, "FixedLossScaleManager: loss_scale"),
        (DynamicLossScaleManager, "DynamicLossScaleManager: init_loss_scale"),
        (FixedLossScaleUpdateCell, "FixedLossScaleUpdateCell: loss_scale_value"),
        (lambda v: DynamicLossScaleManager(max_loss_scale=v), "DynamicLossScaleManager: max_loss"),
        (lambda v: DynamicLossScaleUpdateCell(v, 2, 2), "UpdateCell: loss_scale_value"),
    ):
        with pytest.raises(error, match=f"{name}.*{message}"):
            make(value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"init_loss_scale": 2**65}, ValueError, "init_loss_scale must be finite, >= 1"),
        ({"scale_factor": 1}, ValueError, "scale_factor must be a finite float32 > 1, got 1"),
        ({"scale_factor": 1 + 1e-12}, ValueError, "scale_factor must be a finite float32 > 1"),
        ({"scale_factor": 0.5}, ValueError, "scale_factor must be"),
        ({"scale_factor": -2}, ValueError, "scale_factor must be"),
        ({"scale_factor": math.nan}, ValueError, "scale_factor must be .* got nan"),
        ({"scale_factor": math.inf}, ValueError, "scale_factor must be .* got inf"),
        ({"scale_factor": True}, TypeError, "scale_factor must be a number, got bool"),
        ({"scale_window": 0}, ValueError, "scale_window must be from 1 to 16777216, got 0"),
        ({"scale_window": 2**24 + 1}, ValueError, "scale_window must be from 1 to"),
        ({"scale_window": 2.0}, TypeError, "scale_window must be an int, got float"),
        ({"scale_window": True}, TypeError, "scale_window must be an int, got bool"),
    ],
)
def test_rules_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^DynamicLossScaleManager: {message}"):
        DynamicLossScaleManager(**arguments)


def test_drop_overflow_update_refused() -> None:
    with pytest.raises(TypeError, match="drop_overflow_update must be a bool, got int"):
        FixedLossScaleManager(2.0, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("overflow", [1, None, "no", Tensor(1.0), Tensor([True, False])])
def test_overflow_refused(overflow: Any) -> None:
    with pytest.raises(TypeError, match="update_loss_scale: overflow must be a bool"):
        DynamicLossScaleManager().update_loss_scale(overflow)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"loss_scale": math.nan}, ValueError, "loss_scale must be finite"),
        ({"loss_scale": 0.5}, ValueError, "loss_scale must be finite, >= 1"),
        ({"loss_scale": 2.0**65}, ValueError, "loss_scale must be finite, >= 1"),
        ({"iteration": 0}, ValueError, "iteration must be from 1"),
        ({"iteration": 2**31}, ValueError, "iteration must be from 1"),
        ({"iteration": 1.0}, TypeError, "iteration must be an int, got float"),
        ({"last_change": 1}, ValueError, "last_change must be from 0 to 0, got 1"),
        ({"overflows_in_a_row": 1}, ValueError, "overflows_in_a_row must be from 0 to 0, got 1"),
        ({"reported": 2}, ValueError, "reported must be from 1 to 1, got 2"),
        ({"step": 3}, ValueError, r"got \['step'\] too many and \[\] missing"),
    ],
)
def test_states_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    manager = DynamicLossScaleManager()
    before = manager.state_dict()
    with pytest.raises(error, match=f"^DynamicLossScaleManager.load_state_dict: .*{message}"):
        manager.load_state_dict(before | {"loss_scale": 2.0} | change)
    assert manager.state_dict() == before


def test_incomplete_states_refused() -> None:
    for manager in (DynamicLossScaleManager(), FixedLossScaleManager()):
        with pytest.raises(ValueError, match=r"too many and \[.*'loss_scale'.*\] missing"):
            manager.load_state_dict({})
        with pytest.raises(TypeError, match="state must be a dict, got list"):
            manager.load_state_dict([])  # type: ignore[arg-type]
