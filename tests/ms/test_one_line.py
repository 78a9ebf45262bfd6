"""What Python shows of an optimizer or manager is one line, and a wrong argument is named with the right one."""

from __future__ import annotations

from typing import Any

import pytest
from mindspore import nn

from boost_ext import amp, boost, optim


def parameters() -> list[Any]:
    return nn.Dense(3, 2).trainable_params()


def test_what_python_shows() -> None:
    momentum = optim.Momentum(parameters(), 0.1, 0.9, weight_decay=1e-4)
    line = "Momentum(2 parameters, learning_rate=0.1, momentum=0.9, weight_decay=0.0001)"
    assert repr(momentum) == line
    assert repr(optim.Adam(parameters(), [0.1, 0.01], use_nesterov=True)) == (
        "Adam(2 parameters, learning_rate=2 values, use_nesterov=True)"
    )
    schedule = nn.CosineDecayLR(0.0, 0.1, 10)
    assert repr(optim.Lamb(parameters(), schedule)) == "Lamb(2 parameters, learning_rate=CosineDecayLR)"
    assert repr(optim.LARS(momentum)) == f"LARS({line})"
    assert repr(boost.FreezeOpt(momentum)) == f"FreezeOpt({line}, 1 groups)"
    assert repr(boost.ExponentialMovingAverage(0.9)) == "ExponentialMovingAverage(decay=0.9, 0 weights)"
    assert repr(amp.DynamicLossScaleManager(1024)) == "DynamicLossScaleManager(1024, factor=2, window=2000)"
    assert repr(amp.FixedLossScaleManager(64)) == "FixedLossScaleManager(64, drop_overflow_update=True)"


@pytest.mark.parametrize(
    ("given", "meant"), [("lr", "learning_rate"), ("nesterov", "use_nesterov"), ("wieght_decay", "weight_decay")]
)
def test_an_unknown_argument(given: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"^Momentum: unknown argument '{given}', did you mean '{meant}'\? Known: \["):
        optim.Momentum(parameters(), 0.1, 0.9, **{given: 1.0})
