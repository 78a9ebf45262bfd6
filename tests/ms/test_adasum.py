"""AdaSum in one process: what needs no other rank, and what is refused. tests/distributed has the ranks."""

from __future__ import annotations

import logging
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn
from networks import Mlp, classes, mlp_batch

from boost_ext.boost import AdaSum, AutoBoost, BoostTrainOneStepCell
from boost_ext.ms import adasum, adasum_step
from boost_ext.ms.options import StepOptions

DTYPES = (ms.float32, ms.float16, ms.bfloat16)


def weights_of(dtypes: Any, prefix: str = "w") -> ParameterTuple:
    draws = np.random.default_rng(0)
    return ParameterTuple(
        Parameter(Tensor(draws.standard_normal((3, i + 1)).astype(np.float32)).astype(dtype), name=f"{prefix}{i}")
        for i, dtype in enumerate(dtypes)
    )


def numpy_of(tensors: Any) -> list[np.ndarray]:
    return [t.astype(ms.float32).asnumpy().copy() for t in tensors]


class Caller(nn.Cell):
    def __init__(self, weights: ParameterTuple, old: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.weights, self.old = weights, old
        self.adasum = AdaSum(0, 1, 1, weights)

    def construct(self, *deltas: Tensor) -> Any:
        return self.adasum(deltas, self.weights, self.old)


@pytest.mark.parametrize("dtypes", [[dtype] * 3 for dtype in DTYPES] + [[*DTYPES, ms.float32]], ids=str)
def test_one_rank_subtracts_its_own_delta(mode: int, dtypes: list[Any]) -> None:
    weights, old = weights_of(dtypes), weights_of(dtypes, "old")
    before = numpy_of(old)
    cell = Caller(weights, old)
    for step in range(2):
        deltas = [Tensor(np.full(b.shape, 0.25 + step, np.float32)).astype(d) for b, d in zip(before, dtypes)]  # noqa: B905
        out = cell(*deltas)
        for got, result, start, dtype in zip(numpy_of(weights), numpy_of(out), before, dtypes, strict=True):
            expected = Tensor(start - np.float32(0.25 + step)).astype(dtype).astype(ms.float32).asnumpy()
            np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(result, expected)
    for unchanged, start in zip(numpy_of(old), before, strict=True):
        np.testing.assert_array_equal(unchanged, start)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("0", 1, 1), TypeError, "rank must be an int, got str"),
        ((0, 8, 1), ValueError, r"device_number \* group_number must be the number of ranks, 1, got 8 \* 1"),
        ((0, 1, 2), ValueError, r"device_number \* group_number must be the number of ranks, 1, got 1 \* 2"),
        ((1, 1, 1), ValueError, "rank must be < 1, got 1"),
    ],
)
def test_wrong_numbers(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^AdaSum: {message}$"):
        AdaSum(*arguments, weights_of([ms.float32]))


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        (iter(()), TypeError, "parameter_tuple must be a tuple, got tuple_iterator"),
        ((), ValueError, "parameter_tuple must not be empty"),
        ((Tensor([1.0], ms.float32),), TypeError, "parameter_tuple must hold .* Parameters, got Tensor"),
        ((Parameter(Tensor([1], ms.int32), name="i"),), TypeError, "parameter_tuple must hold .*, got Int32"),
    ],
)
def test_wrong_parameters(parameters: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^AdaSum: {message}$"):
        AdaSum(0, 1, 1, parameters)


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Groups that were created, in a world of 512 ranks."""
    found: dict[str, list[int]] = {}
    monkeypatch.setattr(adasum, "get_group_size", lambda: 512)
    monkeypatch.setattr(adasum, "create_group", lambda name, ranks: found.__setitem__(name, ranks))
    adasum.group_of.cache_clear()
    yield found
    adasum.group_of.cache_clear()


def test_groups_are_named_after_their_ranks(created: dict[str, list[int]]) -> None:
    many = [tuple(range(256)), tuple(range(256, 512)), (*range(255), 256)]
    names = {adasum.group_of(ranks): list(ranks) for ranks in [(0, 1), (0, 8), *many, (0, 1)]}
    assert names == created
    assert len(created) == 5
    assert "boost_ext.0-8" in created
    assert max(map(len, created)) < 127  # HCCL's limit
    assert adasum.group_of(tuple(range(512))) == str(adasum.GlobalComm.WORLD_COMM_GROUP)


class TestCell:
    def cell(self, devices: int | None, plan: Any = None) -> BoostTrainOneStepCell:
        net = Mlp()
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        if devices is not None:
            optimizer.boost_options = StepOptions(adasum_devices=devices)
        return BoostTrainOneStepCell(classes(net), optimizer, plan=plan)

    def test_off(self) -> None:
        assert self.cell(None).check_adasum_enable() is False

    def test_one_rank_says_why_not(self, caplog: pytest.LogCaptureFixture) -> None:
        plan = AutoBoost("O0", {"boost": {"mode": "manual", "adasum": True}}).plan
        assert plan["adasum"].reason == "it needs more than one rank"
        with caplog.at_level(logging.WARNING, logger="boost_ext"):
            cell = self.cell(1, plan)
        assert cell.check_adasum_enable() is False
        assert "adasum is skipped: parallel_mode is stand_alone" in caplog.text
        loss, overflow, _ = cell(*mlp_batch(0, 8))
        assert np.isfinite(loss.asnumpy())
        assert not overflow.asnumpy()

    @pytest.mark.parametrize(
        ("ranks", "parallel_mode", "reason"),
        [
            (4, "stand_alone", "parallel_mode is stand_alone, and it needs data_parallel or hybrid_parallel"),
            (1, "data_parallel", "it needs more than one rank"),
            (2, "data_parallel", "it adds up nodes, and 2 ranks with common.device_number 2 are one"),
            (5, "data_parallel", "common.device_number must divide the number of ranks, 5, got 2"),
        ],
    )
    def test_the_plan_knows(self, monkeypatch: pytest.MonkeyPatch, ranks: int, parallel_mode: str, reason: str) -> None:
        class Cell:
            optimizer = None
            reducer_flag = parallel_mode != "stand_alone"

        Cell.parallel_mode = parallel_mode
        monkeypatch.setattr(adasum_step, "rank_count", lambda: ranks)
        plan = AutoBoost("O0").plan
        update, after = adasum_step.over_nodes(Cell(), StepOptions(adasum_devices=2), plan)
        assert update is None
        assert (after["adasum"].status, after["adasum"].reason) == ("skipped", reason)
        assert adasum_step.over_nodes(Cell(), StepOptions(), plan) == (None, plan)

    def test_adasum_process(self, mode: int) -> None:
        """One node: the step of the optimizer, to rounding."""
        net, same = Mlp(), Mlp()
        update = adasum_step.AdaSumUpdate(nn.Momentum(net.trainable_params(), 0.1, 0.9), 0, 1, 1)
        cell = self.cell(None)
        cell.adasum_update = update
        alone = nn.Momentum(same.trainable_params(), 0.1, 0.9)

        class Process(nn.Cell):
            def construct(self, loss: Tensor, *grads: Tensor) -> Tensor:
                return cell.adasum_process(loss, grads)

        process = Process()
        for step in range(2):
            grads = [Tensor(np.full(p.shape, 0.5 - step, np.float32)) for p in net.trainable_params()]
            assert float(process(Tensor(3.0, ms.float32), *grads).asnumpy()) == 3.0
            alone(tuple(grads))
            for got, expected in zip(net.trainable_params(), same.trainable_params(), strict=True):
                np.testing.assert_allclose(got.asnumpy(), expected.asnumpy(), rtol=1e-6, atol=1e-7)
