"""Gradient freezing: the schedules, one optimizer state, and a backward pass that really ends early."""

import time
from collections import Counter

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.boost import GradientFreeze as ReferenceFreeze
from tests.ms.networks import Mlp, Watched, classes, layers, mlp_batch
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import boost


def weights(net: nn.Cell) -> list[np.ndarray]:
    return [p.asnumpy().copy() for p in net.trainable_params()]


class TestSequence:
    @pytest.mark.parametrize("groups", [1, 2, 5, 10])
    @pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
    @pytest.mark.parametrize("steps", [1, 99, 1000])
    def test_type_0_is_that_of_mindspore(self, groups: int, share: float, steps: int) -> None:
        expected = ReferenceFreeze(groups, 0, share, steps).generate_freeze_index_sequence(groups, 0, share, steps)
        ours = boost.GradientFreeze(groups, 0, share, steps).generate_freeze_index_sequence(groups, 0, share, steps)
        assert ours == expected

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.7, 1.0])
    def test_type_1_has_the_fraction_and_the_distribution(self, share: float) -> None:
        groups, steps = 10, 20000
        sequence = boost.GradientFreeze(groups, 1, share, steps).generate_freeze_index_sequence(groups, 1, share, steps)
        assert len(sequence) == int(steps * 1.01)
        assert set(sequence) <= set(range(groups))
        assert sequence.count(0) / len(sequence) == pytest.approx(share, abs=1e-3)
        count = Counter(i for i in sequence if i)
        for i in range(1, groups) if count else ():
            expected = (groups - i) / 45
            assert count[i] / sum(count.values()) == pytest.approx(expected, abs=0.02)

    def test_type_1_has_the_distribution_of_mindspore(self) -> None:
        args = (6, 1, 0.6, 20000)
        np.random.seed(3)  # noqa: NPY002 - what mindspore.boost draws from
        theirs = Counter(ReferenceFreeze(*args).generate_freeze_index_sequence(*args))
        ours = Counter(boost.GradientFreeze(*args).generate_freeze_index_sequence(*args))
        assert ours[0] == theirs[0]
        for i in range(1, 6):
            assert ours[i] == pytest.approx(theirs[i], rel=0.15)

    @pytest.mark.parametrize("share", [0.0, 0.2, 1 / 3, 0.4, 0.7, 0.99, 1 - 1e-16])
    @pytest.mark.parametrize("steps", [1, 2, 99, 700])
    def test_type_1_step_by_step(self, share: float, steps: int) -> None:
        """By the rule that it says, one draw a step: a seed's sequence stays what it was."""
        random, weights = np.random.default_rng(5), np.arange(6, 0, -1) / 21
        expected, frozen = [0], 0
        while len(expected) < int(steps * 1.01):
            freezes = frozen / len(expected) < 1 - share
            expected.append(int(random.choice(np.arange(1, 7), p=weights)) if freezes else 0)
            frozen += freezes
        freeze = boost.GradientFreeze(7, 1, share, steps, seed=5)
        assert freeze.generate_freeze_index_sequence(7, 1, share, steps) == expected

    @pytest.mark.parametrize("groups", [2, 3, 10])
    @pytest.mark.parametrize("share", [0.0, 0.2, 1 / 3, 0.99, 1.0])
    @pytest.mark.parametrize("steps", [1, 7, 1000])
    def test_type_2_freezes_front_to_back_for_good(self, groups: int, share: float, steps: int) -> None:
        sequence = boost.GradientFreeze(groups, 2, share, steps).generate_freeze_index_sequence(groups, 2, share, steps)
        assert len(sequence) == int(steps * 1.01)
        assert sequence == sorted(sequence)
        assert set(sequence) <= set(range(groups))
        count = Counter(sequence)
        assert count[0] == pytest.approx(share * len(sequence), abs=0.5)
        for i in range(1, groups):
            assert count[i] == pytest.approx((1 - share) * len(sequence) / (groups - 1), abs=1.5)

    @pytest.mark.parametrize("steps", [10**7 + 1, 10**14, 10**400])
    @pytest.mark.parametrize("kind", [0, 1, 2])
    def test_a_sequence_that_no_memory_holds(self, kind: int, steps: int) -> None:
        freeze = boost.GradientFreeze(4, kind, 0.5, 10)
        for call in (boost.GradientFreeze, freeze.generate_freeze_index_sequence):
            with pytest.raises(ValueError, match="total_steps must be from 1 to 10000000, got 10"):
                call(4, kind, 0.5, steps)
        with pytest.raises(ValueError, match="freeze_p must be 1 or freeze in 10000000 steps once, got"):
            freeze.generate_freeze_index_sequence(4, 0, 1 - 1e-15, 10)

    def test_every_rank_draws_the_same(self) -> None:
        args = (10, 1, 0.7, 500)
        np.random.seed(1)  # noqa: NPY002
        first = boost.GradientFreeze(*args).generate_freeze_index_sequence(*args)
        np.random.seed(2)  # noqa: NPY002
        assert boost.GradientFreeze(*args).generate_freeze_index_sequence(*args) == first
        assert boost.GradientFreeze(*args, seed=1).generate_freeze_index_sequence(*args) != first

    def test_an_unfrozen_fraction_of_one(self) -> None:
        """mindspore.boost divides by zero."""
        for kind in (0, 1, 2):
            assert set(boost.GradientFreeze(4, kind, 1.0, 50).generate_freeze_index_sequence(4, kind, 1.0, 50)) == {0}


class TestGroups:
    def test_nested(self) -> None:
        net = Mlp()
        groups = boost.GradientFreeze(2, 0, 0.5, 10).split_parameters_groups(net, 2)
        assert [p.name for p in groups[0]] == [p.name for p in net.trainable_params()]
        assert [p.name for p in groups[1]] == [p.name for p in net.trainable_params()][-len(groups[1]) :]

    def test_names_with_bn_split_like_mindspore(self) -> None:
        net = nn.SequentialCell()
        for i in range(6):
            net.insert_child_to_cell(f"conv{i}", nn.Conv2d(2, 2, 3))
            net.insert_child_to_cell(f"bn{i}", nn.BatchNorm2d(2))
        for count in (1, 2, 3, 6):
            expected = ReferenceFreeze(count, 0, 0.5, 10).split_parameters_groups(net, count)
            ours = boost.GradientFreeze(count, 0, 0.5, 10).split_parameters_groups(net, count)
            assert [[id(p) for p in g] for g in ours] == [[id(p) for p in g] for g in expected]

    @pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 9])
    def test_the_last_group_of_type_2_is_the_head(self, count: int) -> None:
        net = nn.SequentialCell()
        for i in range(5):
            net.insert_child_to_cell(f"conv{i}", nn.Conv2d(2, 2, 3))
            net.insert_child_to_cell(f"bn{i}", nn.BatchNorm2d(2))
        net.insert_child_to_cell("head", nn.Dense(2, 2))
        names = [p.name for p in net.trainable_params()]
        groups = boost.GradientFreeze(count, 2, 0.5, 10).split_parameters_groups(net, count)
        kept = [len(group) for group in groups]
        assert len(kept) == min(count, 6)
        assert kept == sorted(kept, reverse=True)
        assert len(set(kept)) == len(kept)
        assert kept[0] == len(names)
        assert count == 1 or kept[-1] == 2
        assert count != 3 or kept[1] == len(names) - 6  # two of the five blocks before the head
        for group in groups:
            assert [p.name for p in group] == names[-len(group) :]

    def test_more_groups_than_blocks(self) -> None:
        """mindspore.boost then freezes nothing, and keeps the state of every group."""
        net = Mlp()
        freeze = boost.GradientFreeze(10, 0, 0.0, 10)
        _, optimizer = freeze.freeze_generate(classes(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
        assert optimizer.groups_num == 2
        assert "10 groups were asked for, the network has 2 blocks" in freeze.notes[0]
        assert set(optimizer.schedule) == {1}

    def test_a_parameter_that_is_not_the_networks_is_in_every_group(self) -> None:
        net, extra = Mlp(), Parameter(Tensor([1.0]), name="temperature")  # of a loss
        optimizer = nn.Momentum([*net.trainable_params(), extra], 0.1, 0.9)
        _, frozen = boost.GradientFreeze(2, 0, 0.5, 10).freeze_generate(net, optimizer)
        assert [any(p is extra for p in step.parameters) for step in frozen.opts] == [True, True]


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@pytest.mark.parametrize("nested", [False, True], ids=["called", "in a graph"])
@standard(lambda p: p.nested == p.graph and (p.compile != "off" or not p.nested))
def test_trains_the_group_of_the_step(mode: int, compile: str, nested: bool) -> None:
    net = Mlp()
    strategy = [0, 2, 1, 2]
    optimizer = boost.FreezeOpt(nn.Momentum(net.trainable_params(), 0.1, 0.9), layers(net), strategy)
    cell = boost.BoostTrainOneStepCell(classes(net), optimizer, compile=compile)
    call = Nest(cell) if nested else cell
    for step in range(6):
        before = weights(net)
        call(*mlp_batch(step, 16))
        moved = [bool(np.any(a != b)) for a, b in zip(before, weights(net), strict=True)]
        frozen = 2 * strategy[step % 4]
        assert moved == [False] * frozen + [True] * (6 - frozen)
        assert optimizer.position.asnumpy() == step + 1
        if not nested:
            seen = cell.observe()
            assert seen["freeze_index"] == strategy[step % 4]
            assert seen["frozen_share"] == pytest.approx([0, 112 / 368, 316 / 368][strategy[step % 4]])


class Nest(nn.Cell):
    """A cell around the training cell, as a data sink puts one there."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.cell(x, y)[0]


@pytest.mark.parametrize("compile", ["step", "off"])
@standard(lambda p: p.graph == (p.compile == "step"))
def test_one_state_and_one_clock(mode: int, compile: str) -> None:
    """Adam by hand: moments of a frozen weight rest, the bias correction and the schedule advance with each step."""
    net, shadow = Mlp(), Mlp()
    rates = [0.1, 0.05, 0.02, 0.01, 0.005, 0.002]
    strategy = [0, 2, 0, 1, 2, 0]
    base = nn.Adam(net.trainable_params(), rates)
    state = sum(p.size for p in base.get_parameters())
    optimizer = boost.FreezeOpt(base, layers(net), strategy)
    assert sum(p.size for p in {id(p): p for p in optimizer.get_parameters()}.values()) == state + 1
    cell = boost.BoostTrainOneStepCell(classes(net), optimizer, compile=compile)

    grad = ms.value_and_grad(classes(shadow), None, ms.ParameterTuple(shadow.trainable_params()))
    w = [p.asnumpy().astype(np.float64) for p in shadow.trainable_params()]
    m, v = [np.zeros_like(a) for a in w], [np.zeros_like(a) for a in w]
    for t in range(6):
        batch = mlp_batch(t, 16)
        cell(*batch)
        for p, value in zip(shadow.trainable_params(), w, strict=True):
            ops.assign(p, Tensor(value.astype(np.float32)))
        grads = [g.asnumpy().astype(np.float64) for g in grad(*batch)[1]]
        step = rates[t] * np.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.9 ** (t + 1))
        for i in range(2 * strategy[t], 6):
            m[i] = 0.9 * m[i] + 0.1 * grads[i]
            v[i] = 0.999 * v[i] + 0.001 * grads[i] ** 2
            w[i] = w[i] - step * m[i] / (np.sqrt(v[i]) + 1e-8)
        for ours, expected in zip(weights(net), w, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-4)


@in_graph_mode
def test_group_learning_rates(mode: int) -> None:
    """mindspore.boost raises."""
    net = Mlp()
    params = net.trainable_params()
    groups = [{"params": params[:2], "lr": 1.0}, {"params": params[2:], "lr": 0.0}]
    optimizer = boost.FreezeOpt(nn.SGD(groups, 0.5), layers(net), [0, 1])
    cell = boost.BoostTrainOneStepCell(classes(net), optimizer)
    start = weights(net)
    cell(*mlp_batch(0, 16))
    after = weights(net)
    assert all(np.any(a != b) for a, b in zip(start[:2], after[:2], strict=True))
    cell(*mlp_batch(1, 16))
    for a, b in zip(after, weights(net), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("compile", ["step", "off"])
def test_overflow_does_not_move_the_schedule(mode: int, compile: str) -> None:
    net = Mlp()
    optimizer = boost.FreezeOpt(nn.Momentum(net.trainable_params(), 0.1, 0.9), layers(net), [1, 0])
    update = nn.DynamicLossScaleUpdateCell(2.0**8, 2, 1000)
    cell = boost.BoostTrainOneStepWithLossScaleCell(classes(net), optimizer, update, compile=compile)
    x, y = mlp_batch(0, 16)
    before = weights(net)
    assert cell(x * 1e38, y)[1].asnumpy()
    seen = cell.observe()
    assert (seen["overflow"], seen["freeze_index"], seen["loss_scale"]) == (True, 1, 128.0)
    assert {o["name"] for o in seen["overflowed"]} <= {p.name for p in layers(net)[1]}
    assert seen["overflowed"][0]["nan"] + seen["overflowed"][0]["inf"] > 0
    assert optimizer.position.asnumpy() == 0
    for a, b in zip(before, weights(net), strict=True):
        np.testing.assert_array_equal(a, b)


@in_graph_mode
def test_graphs_that_no_step_needs_are_released(mode: int) -> None:
    """And compiled again when the strategy starts again, with the same bits; from then on they stay."""
    nets, seen = [Mlp(), Mlp()], []
    for net, keeps in zip(nets, (True, False), strict=True):
        optimizer = boost.FreezeOpt(nn.Momentum(net.trainable_params(), 0.1, 0.9), layers(net), [0, 1, 0, 2, 2])
        cell = boost.BoostTrainOneStepCell(classes(net), optimizer)
        if keeps:
            optimizer.is_over = lambda group: False
        losses, compiled = [], []
        for step in range(10):
            losses.append(cell(*mlp_batch(step, 16))[0])
            compiled.append([bool(pipeline.compile_cache) for pipeline in cell.pipelines])
        seen.append([loss.asnumpy() for loss in losses])  # of released graphs too
        yes, no = True, False
        if keeps:
            assert compiled[-1] == [yes, yes, yes]
        else:
            expected = [[yes, no, no], [yes, yes, no], [yes, no, no], [no, no, yes], [no, no, yes]]
            assert compiled[:7] == [*expected, [yes, no, yes], [yes, yes, yes]]
            assert compiled[7:] == [[yes, yes, yes]] * 3
    np.testing.assert_array_equal(*seen)
    for ours, theirs in zip(*map(weights, nets), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("compile", ["step", "off"])
@standard(lambda p: p.graph == (p.compile == "step"))
def test_with_accumulation_a_window_trains_one_group(mode: int, compile: str) -> None:
    """mindspore.boost raises AttributeError."""
    net, large = Mlp(), Mlp()
    strategy = [1, 0]
    freeze = boost.FreezeOpt(nn.Momentum(net.trainable_params(), 0.1, 0.9), layers(net), strategy)
    cell = boost.BoostTrainOneStepCell(classes(net), freeze, compile=compile, accumulation_steps=2)
    optimizer = boost.FreezeOpt(nn.Momentum(large.trainable_params(), 0.1, 0.9), layers(large), strategy)
    reference = boost.BoostTrainOneStepCell(classes(large), optimizer, compile="off")
    for step in range(3):
        x, y = mlp_batch(step, 32)
        cell(x[:16], y[:16])
        assert cell.observe()["freeze_index"] == strategy[step % 2]
        cell(x[16:], y[16:])
        assert cell.observe()["freeze_index"] == strategy[step % 2]
        reference(x, y)
        for a, b in zip(weights(net), weights(large), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_the_backward_pass_ends_at_the_last_trained_layer() -> None:
    """Counted eagerly, where Python sees each backward op."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = Watched()
    optimizer = boost.FreezeOpt(nn.Momentum(net.trainable_params(), 0.1, 0.9), layers(net), [0, 1, 2, 2])
    cell = boost.BoostTrainOneStepCell(classes(net), optimizer, compile="off")
    counts = []
    for step in range(4):
        cell(*mlp_batch(step, 16))
        counts.append((net.after_first.backward_passes, net.after_second.backward_passes))
    assert counts == [(1, 1), (1, 2), (1, 2), (1, 2)]


class Wide(nn.Cell):
    """Convolutions that cost enough to be timed."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.SequentialCell([nn.Conv2d(3 if i == 0 else 32, 32, 3) for i in range(6)])
        self.head = nn.Dense(32, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(ops.relu(self.convs(x)).mean((2, 3)))


@in_graph_mode
def test_a_frozen_step_takes_less_time(mode: int) -> None:
    """The forward pass is a third of a step, so leaving out five of six layers saves up to half of the time."""
    net = Wide()
    params = net.trainable_params()
    optimizer = boost.FreezeOpt(nn.SGD(params, 1e-3), [params, params[-3:]], [0, 1])
    cell = boost.BoostTrainOneStepCell(classes(net), optimizer)
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((8, 3, 32, 32)).astype(np.float32))
    y = Tensor(rng.integers(0, 4, 8).astype(np.int32))
    times: list[list[float]] = [[], []]
    for step in range(24):
        start = time.perf_counter()
        cell(x, y)[0].asnumpy()
        times[step % 2].append(time.perf_counter() - start)
    assert min(times[1]) < 0.75 * min(times[0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda net, opt: boost.FreezeOpt(net), TypeError, "opt must be an Optimizer, got Mlp"),
        (lambda net, opt: boost.FreezeOpt(opt, None, [0]), ValueError, "must come with train_parameter_groups"),
        (
            lambda net, opt: boost.FreezeOpt(opt, 3),
            TypeError,
            "train_parameter_groups must be a tuple or list, got int",
        ),
        (lambda net, opt: boost.FreezeOpt(opt, [3]), TypeError, r"train_parameter_groups\[0\] must be a tuple or list"),
        (lambda net, opt: boost.FreezeOpt(opt, [[3]]), TypeError, "must hold Parameters or dicts, got int"),
        (lambda net, opt: boost.FreezeOpt(opt, [[]]), ValueError, "must hold parameters of the optimizer, got none"),
        (lambda net, opt: boost.FreezeOpt(opt, layers(net), [0, 3]), ValueError, "numbers from 0 to 2"),
        (lambda net, opt: boost.FreezeOpt(opt, layers(net), [0.5]), ValueError, "must hold int numbers only"),
        (lambda net, opt: boost.FreezeOpt(opt, layers(net), "01"), TypeError, "train_strategy must be None"),
        (lambda net, opt: boost.FreezeOpt(opt, layers(net), Tensor([0.0])), ValueError, "must be int32 of one dim"),
        (lambda net, opt: boost.FreezeOpt(opt)(()), TypeError, "it is used by BoostTrainOneStepCell"),
        (lambda net, opt: boost.GradientFreeze(10, 3, 0.5, 9), ValueError, "freeze_type must be from 0 to 2, got 3"),
        (lambda net, opt: boost.GradientFreeze(10, 1, 1.5, 9), ValueError, "freeze_p must be from 0 to 1, got 1.5"),
        (lambda net, opt: boost.GradientFreeze(0, 1, 0.5, 9), ValueError, "param_groups must be >= 1, got 0"),
        (lambda net, opt: boost.GradientFreeze(2, 1, 0.5, "9"), TypeError, "total_steps must be a whole number"),
    ],
)
def test_wrong_arguments(call, error: type[Exception], message: str) -> None:
    net = Mlp()
    with pytest.raises(error, match=message):
        call(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))


def test_groups_choose_parameters_alone() -> None:
    net = Mlp()
    group = {"params": net.trainable_params(), "lr": 0.01, "weight_decay": 0.1}
    with pytest.raises(ValueError, match=r"groups\[0\] must choose parameters alone, got \['lr', 'weight_decay'\]"):
        boost.FreezeOpt(nn.SGD(net.trainable_params(), 0.1), [[group]])
