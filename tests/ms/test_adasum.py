"""AdaSum in one process: what needs no other rank, and what is refused. tests/distributed has the ranks."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn

import oracle
from boost_ext import adasum_simulate, optim
from boost_ext.boost import AdaSum, AutoBoost, BoostTrainOneStepCell
from boost_ext.ms import native
from boost_ext.ms.step import adasum, adasum_step
from boost_ext.ms.step.options import StepOptions, what_trains
from networks import Mlp, classes, mlp_batch

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


class Meeting:
    """Stands for AdaSum where one process is all the nodes: notes their deltas; :meth:`end` adds them up."""

    nodes: ClassVar[list[Any]] = []

    def __init__(self, rank: int, devices: int, nodes: int, parameters: Any, half_members: Any) -> None:
        self.plan = Tensor(np.array([0, 1, 0, *half_members], np.float64))  # one part, which is the whole

    def update(self, weights: Any, old: Any, halves: Any) -> Tensor:
        self.nodes.append((self.plan, weights, old, halves))
        return Tensor([True])

    @classmethod
    def end(cls) -> None:
        deltas = [[old[0].asnumpy() - weights[0].asnumpy()] for _, weights, old, _ in cls.nodes]
        total = Tensor(adasum_simulate(deltas)[0])
        for plan, weights, old, halves in cls.nodes:
            native.AdasumPartApply()(plan, total, old, weights, halves)
        cls.nodes.clear()


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_below_the_spacing_are_averaged_as_any(monkeypatch: pytest.MonkeyPatch, dtype: Any, nodes: int) -> None:
    """Equal gradients but for 30 % of noise: half-precision weights move as float64 does, not some times as far."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    monkeypatch.setattr(adasum_step, "AdaSum", Meeting)
    draws, steps, rate = np.random.default_rng(1), 40, 1e-5
    common = draws.standard_normal(1000)
    start = draws.standard_normal(1000).astype(np.float16).astype(np.float32)
    start = Tensor(start).astype(ms.bfloat16).astype(ms.float32).asnumpy()
    weights = [Parameter(Tensor(start).astype(dtype), name=f"w{k}") for k in range(nodes)]
    updates = [adasum_step.AdaSumUpdate(optim.Momentum([w], rate, 0.0), k, 1, nodes) for k, w in enumerate(weights)]
    exact = start.astype(np.float64)
    for _ in range(steps):
        grads = [(common + 0.3 * draws.standard_normal(1000)).astype(np.float32) for _ in range(nodes)]
        for update, grad in zip(updates, grads, strict=True):
            update((Tensor(grad),))
        Meeting.end()
        exact -= oracle.adasum_over_nodes([[rate * g.astype(np.float64)] for g in grads])[0]
    way = (start - exact) @ common / (common @ common) / (rate * steps)
    assert 1 <= way < 1.2
    for weight, update in zip(weights, updates, strict=True):
        master = update.stepped[0].asnumpy()
        np.testing.assert_allclose(master - start, exact - start, rtol=0, atol=0.01 * rate * steps)
        np.testing.assert_array_equal(numpy_of([weight])[0], numpy_of([Tensor(master).astype(dtype)])[0])
        np.testing.assert_array_equal(master, updates[0].stepped[0].asnumpy())


def test_a_half_that_was_set_from_outside_takes_its_master_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the master is noted: the way there is no step that AdaSum adds up."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    monkeypatch.setattr(adasum_step, "AdaSum", Meeting)
    weight = Parameter(Tensor([1.0, 2.0], ms.float16), name="w")
    update = adasum_step.AdaSumUpdate(optim.LARS(optim.Momentum([weight], 0.25, 0.0), use_clip=True), 0, 1, 2)
    weight.set_data(Tensor([3.0, 2.0], ms.float16))
    update((Tensor([0.0, 0.0], ms.float16),))
    (_, (master,), (old,), (half,)), _ = Meeting.nodes[0], Meeting.nodes.clear()
    assert half is weight
    np.testing.assert_array_equal(old.asnumpy(), [3.0, 2.0])
    np.testing.assert_array_equal(master.asnumpy(), [3.0, 2.0])


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
            options = StepOptions(adasum_devices=2)
            scale_groups = False
            reducer_flag = parallel_mode != "stand_alone"

        Cell.parallel_mode = parallel_mode
        monkeypatch.setattr(adasum_step, "rank_count", lambda: ranks)
        assert adasum_step.over_nodes(Cell()) is None
        optimizer = nn.SGD(Mlp().trainable_params())
        after = what_trains(AutoBoost("O0").plan, optimizer, Cell.options, Cell())
        assert (after["adasum"].status, after["adasum"].reason) == ("skipped", reason)

    @pytest.mark.parametrize("dtypes", [DTYPES[:1], DTYPES], ids=["float32", "mixed"])
    def test_adasum_process(self, mode: int, dtypes: Any) -> None:
        """One node: the step of the optimizer, to rounding."""
        net, same = Mlp(), Mlp()
        for either in (net, same):
            for i, p in enumerate(either.trainable_params()):
                p.set_dtype(dtypes[i % len(dtypes)])
        make = nn.Momentum if len(dtypes) == 1 else optim.Momentum
        update = adasum_step.AdaSumUpdate(make(net.trainable_params(), 0.1, 0.9), 0, 1, 1)
        cell = self.cell(None)
        cell.adasum_update = update
        alone = make(same.trainable_params(), 0.1, 0.9)

        class Process(nn.Cell):
            def construct(self, loss: Tensor, *grads: Tensor) -> Tensor:
                return cell.adasum_process(loss, grads)

        process = Process()
        for step in range(2):
            grads = [Tensor(np.full(p.shape, 0.5 - step), p.dtype) for p in net.trainable_params()]
            assert float(process(Tensor(3.0, ms.float32), *grads).asnumpy()) == 3.0
            alone(tuple(grads))
            if len(dtypes) == 1:
                pairs = zip(net.trainable_params(), same.trainable_params(), strict=True)
            else:
                pairs = zip(update.stepped, alone.masters, strict=True)
                for half, master in zip(net.trainable_params(), update.stepped, strict=True):
                    np.testing.assert_array_equal(*numpy_of([half, master.astype(half.dtype)]))
            for got, expected in pairs:
                np.testing.assert_allclose(got.asnumpy(), expected.asnumpy(), rtol=1e-6, atol=1e-7)
