"""The managers and their update cells: against the rule in float64, against MindSpore's own, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, amp, nn

from boost_ext.ms.loss_scale.loss_scale_update import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell
from boost_ext.ms.loss_scale.managers import (
    DynamicLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
)

OVERFLOWS = st.lists(st.booleans(), max_size=60)


def rule(overflows: list[bool], scale: float, factor: float, window: int, maximum: float) -> list[float]:
    """The definition: all scales after each step, in float64, rounded as it is stored."""
    scales, since = [], 0
    for overflow in overflows:
        since += 1
        if overflow:
            scale, since = max(scale / factor, 1.0), 0
        elif since == window:
            scale, since = min(scale * factor, maximum), 0
        scale = float(np.float32(scale))
        scales.append(scale)
    return scales


@pytest.mark.parametrize(("factor", "window", "maximum"), [(2, 3, 2.0**12), (4, 1, 2.0**20), (1.5, 2, 1000.0)])
class TestRule:
    def test_manager(self, factor: float, window: int, maximum: float) -> None:
        @given(OVERFLOWS)
        def check(overflows: list[bool]) -> None:
            manager = DynamicLossScaleManager(512, factor, window, max_loss_scale=maximum)
            got = []
            for overflow in overflows:
                manager.update_loss_scale(overflow)
                got.append(manager.get_loss_scale())
            assert got == rule(overflows, 512, factor, window, maximum)

        check()

    def test_cell(self, mode: int, factor: float, window: int, maximum: float) -> None:
        manager = DynamicLossScaleManager(512, factor, window, max_loss_scale=maximum)
        cell, start = manager.get_update_cell(), manager.state_dict()
        own = Parameter(Tensor([512.0], ms.float32), name="own", requires_grad=False)

        @given(OVERFLOWS)
        def check(overflows: list[bool]) -> None:
            manager.load_state_dict(start)
            got = []
            for i, overflow in enumerate(overflows):  # both ways to hold the scale, both shapes
                shape = () if i % 3 else (1,)
                caller = cell.scale_sense if i % 2 else own
                out = cell(caller, Tensor(np.full(shape, overflow)))
                assert (bool(out.asnumpy()), out.shape) == (overflow, shape)
                got.append(float(caller.asnumpy().item()))
            assert got == rule(overflows, 512, factor, window, maximum)

        check()


@given(OVERFLOWS, st.sampled_from([2, 4, 8]), st.integers(1, 5))
def test_manager_agrees_with_mindspore(overflows: list[bool], factor: int, window: int) -> None:
    ours = DynamicLossScaleManager(2**16, factor, window, max_loss_scale=2.0**127)
    theirs = amp.DynamicLossScaleManager(2**16, factor, window)
    for overflow in overflows:
        if theirs.get_loss_scale() > 2.0**120:
            break  # from here on theirs grows to inf
        ours.update_loss_scale(overflow)
        theirs.update_loss_scale(overflow)
        assert ours.get_loss_scale() == theirs.get_loss_scale()


def test_cell_agrees_with_mindspore(mode: int, rng: np.random.Generator) -> None:
    ours = DynamicLossScaleManager(2**10, 2, 3).get_update_cell()
    theirs = nn.DynamicLossScaleUpdateCell(2**10, 2, 3)
    a, b = (Parameter(Tensor(2.0**10, ms.float32), name=n, requires_grad=False) for n in ("a", "b"))
    for overflow in rng.random(60) < 0.2:
        ours(a, Tensor(bool(overflow)))
        theirs(b, Tensor(bool(overflow)))
        assert a.asnumpy() == b.asnumpy()


def test_cell_twice_in_a_graph_with_the_result_unused(mode: int) -> None:
    """What a graph compiler would merge or drop if the op did not declare its writes."""

    class Twice(nn.Cell):  # type: ignore[misc]
        def __init__(self, cell: nn.Cell) -> None:
            super().__init__()
            self.cell = cell

        def construct(self, overflow: Tensor) -> tuple[Tensor, Tensor]:
            before = self.cell.scale_sense + 0
            self.cell(self.cell.scale_sense, overflow)
            self.cell(self.cell.scale_sense, overflow)
            return before, self.cell.scale_sense + 0

    cell = DynamicLossScaleManager(1024).get_update_cell()
    before, after = Twice(cell)(Tensor(True))
    assert (float(before.asnumpy()), float(after.asnumpy())) == (1024, 256)
    assert cell.counters.asnumpy().tolist() == [3, 2, 2]


def test_python_bool_in_a_cell(mode: int) -> None:
    class Overflows(nn.Cell):  # type: ignore[misc]
        def __init__(self, cell: nn.Cell) -> None:
            super().__init__()
            self.cell = cell

        def construct(self) -> bool:
            return self.cell(self.cell.scale_sense, True)

    cell = DynamicLossScaleManager(1024).get_update_cell()
    Overflows(cell)()
    assert cell.get_loss_scale() == 512


class TestH17:
    """MindSpore: the dynamic scale grows to inf; manager and update cell do not share state."""

    def test_reference_has_the_defects(self) -> None:
        theirs = amp.DynamicLossScaleManager(2.0**1023, 2, 1)
        theirs.update_loss_scale(False)
        assert theirs.get_loss_scale() == math.inf
        assert theirs.get_update_cell() is not theirs.get_update_cell()

    def test_scale_is_bounded(self, mode: int) -> None:
        manager = DynamicLossScaleManager(2.0**62, 2, 1)
        cell = manager.get_update_cell()
        for _ in range(5):
            cell(cell.scale_sense, Tensor(False))
        assert manager.get_loss_scale() == 2.0**64
        for _ in range(80):
            cell(cell.scale_sense, Tensor(True))
        assert manager.get_loss_scale() == 1

    def test_one_state(self, mode: int) -> None:
        manager = DynamicLossScaleManager(1024, 2, 2)
        cell = manager.get_update_cell()
        assert manager.get_update_cell() is cell
        manager.update_loss_scale(True)
        assert cell.get_loss_scale() == manager.get_loss_scale() == 512
        cell(cell.scale_sense, Tensor(True))
        assert cell.get_loss_scale() == manager.get_loss_scale() == 256
        assert manager.state_dict()["overflows_in_a_row"] == 2

    def test_a_reported_step_counts_once(self, mode: int) -> None:
        """mindspore.Model calls update_loss_scale after each step of a cell that has counted it."""
        manager, expected = DynamicLossScaleManager(1024, 2, 2), DynamicLossScaleManager(1024, 2, 2)
        cell = manager.get_update_cell()
        for overflow in (True, False, False, True, True, False):
            out = cell(cell.scale_sense, Tensor(overflow))
            manager.update_loss_scale(np.all(out.asnumpy()))
            expected.update_loss_scale(overflow)
            assert manager.state_dict() == expected.state_dict()
        manager.update_loss_scale(True)  # a loop that has no cell from here on
        expected.update_loss_scale(True)
        assert manager.state_dict() == expected.state_dict()


def test_state_dict_resumes_bit_by_bit(rng: np.random.Generator) -> None:
    overflows = (rng.random(100) < 0.15).tolist()
    straight = DynamicLossScaleManager(777, 1.7, 4)
    half, resumed = DynamicLossScaleManager(777, 1.7, 4), DynamicLossScaleManager(1, 1.7, 4)
    for overflow in overflows:
        straight.update_loss_scale(overflow)
    for overflow in overflows[:50]:
        half.update_loss_scale(overflow)
    resumed.load_state_dict(half.state_dict())
    for overflow in overflows[50:]:
        resumed.update_loss_scale(overflow)
    assert resumed.state_dict() == straight.state_dict()
    assert type(resumed.state_dict()["loss_scale"]) is float
    assert type(resumed.state_dict()["iteration"]) is int


def test_the_1001st_overflow_in_a_row_raises(mode: int) -> None:
    manager = DynamicLossScaleManager()
    manager.load_state_dict(
        {
            "loss_scale": 1.0,
            "iteration": 1001,
            "last_change": 1000,
            "overflows_in_a_row": 999,
            "reported": 1001,
        }
    )
    cell = manager.get_update_cell()
    cell(cell.scale_sense, Tensor(True))
    with pytest.raises(RuntimeError, match="loss_scale_update"):
        cell(cell.scale_sense, Tensor(True))
    assert manager.state_dict()["overflows_in_a_row"] == 1001
    if mode == ms.PYNATIVE_MODE:  # MindSpore runs a graph in which an op failed no more
        cell(cell.scale_sense, Tensor(False))
        assert manager.state_dict()["overflows_in_a_row"] == 0


def test_the_1001st_overflow_in_a_row_raises_in_the_manager(mode: int) -> None:
    manager = DynamicLossScaleManager()
    manager.load_state_dict(manager.state_dict() | {"iteration": 1000, "reported": 1000, "overflows_in_a_row": 999})
    manager.update_loss_scale(True)
    with pytest.raises(RuntimeError, match="1001 overflows in a row at loss scale"):
        manager.update_loss_scale(True)
    assert manager.state_dict()["overflows_in_a_row"] == 1001


class TestFixed:
    def test_drop_overflow_update(self, mode: int) -> None:
        manager = FixedLossScaleManager(512.0)
        cell = manager.get_update_cell()
        assert isinstance(cell, nn.FixedLossScaleUpdateCell)
        assert manager.get_update_cell() is cell
        own = Parameter(Tensor(3.0, ms.float32), name="own", requires_grad=False)
        assert bool(cell(own, Tensor(True)).asnumpy()) is True
        manager.update_loss_scale(True)
        assert (own.asnumpy(), manager.get_loss_scale()) == (3, 512)
        assert manager.get_drop_overflow_update() is True

    def test_without(self) -> None:
        manager = FixedLossScaleManager(0.1 + 1000, False)
        assert manager.get_update_cell() is None
        assert manager.get_drop_overflow_update() is False
        assert manager.get_loss_scale() == 0.1 + 1000  # what the optimizer was given, unrounded

    def test_defaults_and_state(self) -> None:
        manager = FixedLossScaleManager()
        assert manager.get_loss_scale() == 128
        manager.load_state_dict({"loss_scale": 64.0})
        assert manager.state_dict() == {"loss_scale": 64.0}
        assert manager.get_update_cell().get_loss_scale() == 64
        manager = FixedLossScaleManager(128, False)
        manager.load_state_dict(manager.state_dict())
        with pytest.raises(ValueError, match=r"loss_scale must be 128\.0, .*got 64"):
            manager.load_state_dict({"loss_scale": 64.0})


def test_mindspore_takes_them_for_its_own() -> None:
    for manager in (FixedLossScaleManager(), DynamicLossScaleManager()):
        assert isinstance(manager, amp.LossScaleManager)
    cell = DynamicLossScaleManager().get_update_cell()
    assert isinstance(cell, nn.DynamicLossScaleUpdateCell)
    assert [p.name for p in cell.get_parameters()] == [
        "loss_scale.value",
        "loss_scale.counters",
        "loss_scale.reported",
    ]
    assert not cell.trainable_params()
    assert DynamicLossScaleManager().get_loss_scale() == 2**24
    assert DynamicLossScaleManager().get_drop_overflow_update() is True


def test_base_class_is_abstract() -> None:
    class Half(LossScaleManager):
        def get_loss_scale(self) -> float:
            return 1.0

    with pytest.raises(TypeError, match="abstract"):
        Half()


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
