"""Local steps without ranks: the simulator beside float64, its properties, its bytes, what it saves and refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext.local_steps import LocalStepsSimulator, outer_rule
from dtypes import assert_same_bits

Array = np.ndarray
SHAPES = ((7,), (), (3, 0), (33, 5), (4097,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
OUTERS = ("nesterov", "mean", "adasum", "adacons")
seeds = st.integers(0, 2**32 - 1)


def made(ranks: int, seed: int = 0, shapes: Any = SHAPES, **options: Any) -> LocalStepsSimulator:
    rng = np.random.default_rng(seed)
    first = [np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes]
    weights = [[array.copy() for array in first] for _ in range(ranks)]
    return LocalStepsSimulator(weights, **options)


def moved(local: LocalStepsSimulator, step: int) -> None:
    """Each rank's optimizer, along a direction that they share and one of its own."""
    common = np.random.default_rng([1, step])
    for rank, arrays in enumerate(local.weights):
        own = np.random.default_rng([2, step, rank])
        for array in arrays:
            array -= 0.1 * (common.standard_normal(array.shape) + own.standard_normal(array.shape)).astype(np.float32)


def flat(arrays: Any) -> Array:
    return np.concatenate([np.asarray(array, np.float64).ravel() for array in arrays])


def compressed(vector: Array, compress: str | None, density: float) -> Array:
    if compress is None:
        return vector
    if compress == "int8":
        return oracle.nearest_codes(vector)
    length = -(-len(vector) // 256) * 256  # one chunk here, of whole blocks
    kept = oracle.largest_elements(np.pad(vector, (0, length - len(vector))), -(-int(density * length) // 4) * 4)
    out = np.zeros(length)
    out[kept != 0] = oracle.nearest_codes(kept[kept != 0])
    return out[: len(vector)]


class Definition:
    """The docstring of the module, in float64."""

    def __init__(self, local: LocalStepsSimulator, compress: str | None, decay: float, density: float) -> None:
        self.local, self.compress, self.decay, self.density = local, compress, decay, density
        self.anchor = flat(local.weights[0])
        self.momentum = np.zeros(SIZE)
        self.errors = [np.zeros(SIZE) for _ in local.weights]

    def exchange(self) -> None:
        sent = []
        for r, arrays in enumerate(self.local.weights):
            total = self.anchor - flat(arrays)
            if self.compress:
                total = self.decay * self.errors[r] + total
            sent.append(compressed(total, self.compress, self.density))
            self.errors[r] = total - sent[-1]
        rule = self.local.rule
        if rule.outer == "nesterov":
            mean = np.mean(sent, axis=0)
            self.anchor, (self.momentum,) = oracle.momentum_step(
                self.anchor, mean, self.momentum, rule.learning_rate, rule.momentum, True
            )
            return
        if rule.outer == "adasum":
            ends = np.cumsum([array.size for array in self.local.weights[0]])[:-1]
            total = np.concatenate(oracle.adasum_over_nodes([np.split(row, ends) for row in sent]))
        else:
            total = oracle.adacons(sent) if rule.outer == "adacons" else np.mean(sent, axis=0)
        self.anchor = self.anchor - rule.learning_rate * total


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("compress", [None, "int8", "topk"])
@pytest.mark.parametrize("outer", OUTERS)
def test_against_float64(outer: Any, compress: Any, ranks: int) -> None:
    options = {"error_decay": 0.9} if compress else {}
    if compress == "topk":
        options["density"] = 0.1
    local = made(ranks, every=2, outer=outer, compress=compress, learning_rate=0.5, **options)
    definition = Definition(local, compress, 0.9, 0.1)
    for step in range(6):
        moved(local, step)
        if step % 2 == 0:
            before = [flat(arrays) for arrays in local.weights]
            assert not local.step()
            assert all(np.array_equal(a, flat(b)) for a, b in zip(before, local.weights, strict=True))
            continue
        definition.exchange()
        assert local.step()
        for arrays in local.weights:
            # A code on the edge of two may fall the other way: one such step.
            np.testing.assert_allclose(flat(arrays), definition.anchor, rtol=0, atol=2e-5 if compress is None else 2e-2)
            close = np.abs(flat(arrays) - definition.anchor) < 2e-5
            assert close.mean() > 0.99
        definition.anchor = flat(local.weights[0])


@pytest.mark.parametrize("n", [1, 255, 256, 257, 65535, 65536, 65537, 200_000, (1 << 20) + 1])
@pytest.mark.parametrize("compress", ["int8", "topk"])
def test_what_is_sent_and_the_error_are_the_whole(compress: str, n: int) -> None:
    rule = outer_rule("test", 1, "mean", compress, density=0.01 if compress == "topk" else None)
    rng = np.random.default_rng(n)
    anchor = np.zeros(rule.length(n), np.float32)
    weights = rng.standard_normal(n).astype(np.float32)
    difference, error = anchor.copy(), np.zeros_like(anchor)
    difference[:n] = -weights
    sent = rule.encode(anchor, [weights], error)
    assert all(array.nbytes % 4 == 0 for array in sent)
    assert sum(array.nbytes for array in sent) == rule.sent_bytes(n)
    moved = np.zeros_like(anchor)
    rule.combine({"anchor": moved}, [array[None] for array in sent], [n])
    got = -moved
    np.testing.assert_allclose(got + error, difference, rtol=0, atol=1e-6)
    if compress == "topk":
        assert np.abs(error[got != 0]).max() < np.abs(difference).max() / 100
        for begin in range(0, len(difference), 65536):
            part, left = np.abs(difference[begin : begin + 65536]), got[begin : begin + 65536] == 0
            assert part[~left].min() >= part[left].max() - 1e-6 if left.any() else True
            assert (~left).sum() <= -(-int(0.01 * len(part)) // 4) * 4 or len(part) < 400


def test_bytes() -> None:
    """Of 25e6 float32 parameters a data-parallel step sends 100 MB."""
    n = 25_000_000
    assert outer_rule("test", 1).sent_bytes(n) == 4 * 25_000_192
    assert 3.9 < 4 * n / outer_rule("test", 1, compress="int8").sent_bytes(n) < 4
    assert 41 < 4 * n / outer_rule("test", 1, "mean", "topk").sent_bytes(n) < 43


@pytest.mark.parametrize("compress", ["int8", "topk"])
def test_error_feedback_sends_all_in_the_end(compress: Any) -> None:
    """One direction again and again: what the codes leave out of one exchange, another brings."""
    local = made(2, every=1, outer="mean", compress=compress, density=1 / 32 if compress == "topk" else None)
    start, way = flat(local.weights[0]), np.random.default_rng(3).standard_normal(SIZE).astype(np.float32)
    for _ in range(200):
        for arrays in local.weights:
            for array, part in zip(arrays, np.split(way, np.cumsum([a.size for a in arrays])), strict=False):
                array -= 0.01 * part.reshape(array.shape)
        local.step()
    gone = start - flat(local.weights[0])
    np.testing.assert_allclose(gone, 2.0 * way, rtol=0, atol=0.01 if compress == "int8" else 1.5)
    assert gone @ way / (way @ way) == pytest.approx(2.0, rel=0.01 if compress == "int8" else 0.25)


class TestProperties:
    @given(seeds, st.sampled_from(OUTERS), st.integers(1, 5))
    def test_equal_ranks_are_one_rank(self, seed: int, outer: Any, ranks: int) -> None:
        alone = made(1, seed, ((20,),), every=1, outer=outer)
        several = made(ranks, seed, ((20,),), every=1, outer=outer)
        for step in range(2):
            move = np.random.default_rng([seed, step]).standard_normal(20).astype(np.float32)
            for local in (alone, several):
                for arrays in local.weights:
                    arrays[0] -= move
                local.step()
        np.testing.assert_allclose(several.weights[0][0], alone.weights[0][0], rtol=1e-5, atol=1e-5)

    @given(seeds)
    def test_a_rank_against_all_others_counts_nothing(self, seed: int) -> None:
        local = made(4, seed, ((30,),), every=1, outer="adacons")
        start = local.weights[0][0].copy()
        way = np.random.default_rng(seed).standard_normal(30).astype(np.float32)
        for rank, arrays in enumerate(local.weights):
            arrays[0] -= way if rank else -way
        local.step()
        np.testing.assert_allclose(local.weights[0][0], start - way, rtol=1e-4, atol=1e-5)

    @given(seeds, st.sampled_from(OUTERS), st.sampled_from([None, "int8", "topk"]))
    def test_ranks_that_do_not_move_stay(self, seed: int, outer: Any, compress: Any) -> None:
        local = made(3, seed, every=1, outer=outer, compress=compress)
        start = [array.copy() for array in local.weights[0]]
        assert local.step()
        for arrays in local.weights:
            for got, same in zip(arrays, start, strict=True):
                assert_same_bits(got, same)


@pytest.mark.parametrize("compress", [None, "int8", "topk"])
@pytest.mark.parametrize("outer", OUTERS)
def test_a_resumed_run_has_the_bits_of_one_that_was_not(outer: Any, compress: Any) -> None:
    options: Any = {"every": 3, "outer": outer, "compress": compress}
    whole, first = made(2, **options), made(2, **options)
    for step in range(8):
        moved(whole, step)
        whole.step()
    for step in range(4):  # within a window
        moved(first, step)
        first.step()
    state = first.state_dict()
    second = made(2, **options)
    for own, others in zip(second.weights, first.weights, strict=True):
        for a, b in zip(own, others, strict=True):
            a[...] = b
    second.load_state_dict(state)
    for step in range(4, 8):
        moved(second, step)
        second.step()
    for a, b in zip(whole.weights, second.weights, strict=True):
        for x, y in zip(a, b, strict=True):
            assert_same_bits(x, y)


def test_weights_that_are_not_finite_change_nothing() -> None:
    local = made(3, every=1, compress="int8")
    moved(local, 0)
    local.weights[1][0][3] = np.nan
    before, state = [flat(arrays) for arrays in local.weights], local.state_dict()
    with pytest.raises(FloatingPointError, match=r"^LocalStepsSimulator: weights\[1\] must be finite at an exchange$"):
        local.step()
    for arrays, same in zip(local.weights, before, strict=True):
        np.testing.assert_array_equal(flat(arrays), same)
    for name, array in local.state_dict().items():
        np.testing.assert_array_equal(array, state[name])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"every": 0}, ValueError, "every must be >= 1, got 0"),
        ({"every": 1.5}, TypeError, "every must be an integer, got float"),
        ({"outer": "sum"}, ValueError, "outer must be one of .*, got 'sum'"),
        ({"compress": "int4"}, ValueError, "compress must be None or one of .*, got 'int4'"),
        ({"outer": "mean", "momentum": 0.9}, ValueError, "momentum must be None without outer='nesterov', got 0.9"),
        ({"density": 0.1}, ValueError, "density must be None without compress='topk', got 0.1"),
        ({"error_decay": 0.9}, ValueError, "error_decay must be None without compress, got 0.9"),
        ({"learning_rate": 0}, ValueError, "learning_rate must be > 0 and <= 10, got 0"),
        ({"learning_rate": "1"}, TypeError, "learning_rate must be a number, got str"),
        ({"momentum": 1.1}, ValueError, "momentum must be >= 0 and <= 1, got 1.1"),
        ({"momentum": float("nan")}, ValueError, "momentum must be >= 0 and <= 1, got nan"),
        ({"compress": "topk", "density": 0.0}, ValueError, "density must be > 0 and <= 1, got 0"),
        ({"compress": "int8", "error_decay": -1}, ValueError, "error_decay must be >= 0 and <= 1, got -1"),
    ],
    ids=str,
)
def test_arguments(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^LocalStepsSimulator: {text}"):
        made(2, **({"every": 2} | options))


def test_weights_that_it_refuses() -> None:
    name, good = "LocalStepsSimulator", np.zeros(3, np.float32)
    with pytest.raises(TypeError, match=f"^{name}: weights must be a list with a list of arrays for each rank"):
        LocalStepsSimulator(good, 1)
    with pytest.raises(ValueError, match=f"^{name}: weights must hold at least one rank"):
        LocalStepsSimulator([], 1)
    with pytest.raises(TypeError, match=rf"^{name}: weights\[1\]\[0\] must be a float32 array, got float64"):
        LocalStepsSimulator([[good], [np.zeros(3)]], 1)
    for other in ([np.ones(3, np.float32)], [np.zeros(4, np.float32)], [good, good]):
        with pytest.raises(ValueError, match=rf"^{name}: weights\[1\] must have the shapes and values of weights\[0\]"):
            LocalStepsSimulator([[good], other], 1)
    fixed = good.copy()
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match=rf"^{name}: weights\[0\]\[0\] must be writable"):
        LocalStepsSimulator([[fixed]], 1)
    local, other_state = made(2, every=2), made(3, every=2, compress="int8").state_dict()
    with pytest.raises(ValueError, match=f"^{name}: state must be of a simulator made with the same arguments"):
        local.load_state_dict(other_state)
