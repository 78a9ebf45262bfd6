"""AdaSum over ranks without ranks: the simulator against float64, its properties, the schedule, the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import adasum_parts
import oracle
from boost_ext import adasum_simulate
from boost_ext.adasum import padded, schedule
from dtypes import DTYPES, FLOATS, UNIT, assert_same_bits, normal

SHAPES = ((7,), (), (3, 0), (33, 5), (1,), (4097,))
LAYOUTS = [(n, d) for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16) for d in (1, 2, 3)]
seeds = st.integers(0, 2**32 - 1)
counts = st.integers(1, 9)


def nodes_of(rng: np.random.Generator, count: int, dtype: Any = np.float32, shapes: Any = SHAPES) -> list[list[Any]]:
    return [[np.asarray(normal(rng, shape, dtype)) for shape in shapes] for _ in range(count)]


def wide(arrays: Any) -> list[np.ndarray]:
    return [np.asarray(array).astype(np.float64) for array in arrays]


def assert_near(got: Any, expected: Any, nodes: Any, roundings: float) -> None:
    """Relative to the largest element of each tensor on any node: what is added up may cancel."""
    for g, e, *given_ in zip(got, expected, *nodes, strict=True):
        assert g.shape == e.shape
        scale = max(np.abs(array.astype(np.float64)).max(initial=0.0) for array in given_)
        np.testing.assert_allclose(np.asarray(g).astype(np.float64), e, rtol=0, atol=roundings * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 13])
def test_against_float64(rng: np.random.Generator, count: int, dtype: Any) -> None:
    nodes = nodes_of(rng, count, dtype)
    got = adasum_simulate(nodes)
    assert [array.dtype for array in got] == [dtype] * len(SHAPES)
    # Each level rounds each element, in proportion to terms that may be several times the sum.
    assert_near(got, oracle.adasum_over_nodes([wide(node) for node in nodes]), nodes, 8 * UNIT[np.dtype(dtype).name])


def test_each_dtype_goes_its_own_way(rng: np.random.Generator) -> None:
    kinds = list(FLOATS.values())
    nodes = [[np.asarray(normal(rng, s, kinds[i % 3])) for i, s in enumerate(SHAPES)] for _ in range(3)]
    together = adasum_simulate(nodes)
    for kind in range(3):
        alone = adasum_simulate([node[kind::3] for node in nodes])
        for got, expected in zip(together[kind::3], alone, strict=True):
            assert_same_bits(got, expected)


def test_devices_change_the_sum_by_rounding_only(rng: np.random.Generator) -> None:
    nodes = nodes_of(rng, 6)
    one = adasum_simulate(nodes)
    for devices in (2, 3, 8):
        assert_near(adasum_simulate(nodes, devices), wide(one), nodes, 1e-6)


def test_nothing_given_is_changed_or_returned(rng: np.random.Generator) -> None:
    nodes = nodes_of(rng, 3)
    copies = [[array.copy() for array in node] for node in nodes]
    got = adasum_simulate(nodes) + adasum_simulate(nodes[:1])
    for node, copy in zip(nodes, copies, strict=True):
        for array, same in zip(node, copy, strict=True):
            assert_same_bits(array, same)
            assert not any(np.shares_memory(array, other) for other in got)


class TestProperties:
    @given(seeds, counts)
    def test_orthogonal_ones_add(self, seed: int, count: int) -> None:
        n = 4 * count
        basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0].astype(np.float32)
        got = adasum_simulate([[basis[k]] for k in range(count)])
        np.testing.assert_allclose(got[0], basis[:count].sum(axis=0), atol=1e-5)

    @given(seeds, st.sampled_from([1, 2, 4, 8, 16]))
    def test_parallel_ones_average(self, seed: int, count: int) -> None:
        """Of a power of two; the others count double in some branch."""
        draws = np.random.default_rng(seed)
        direction = draws.standard_normal(50).astype(np.float32)
        lengths = draws.uniform(0.5, 2, count).astype(np.float32)
        got = adasum_simulate([[length * direction] for length in lengths])
        np.testing.assert_allclose(got[0], lengths.mean() * direction, rtol=1e-5, atol=1e-6)

    @given(seeds, counts, st.sampled_from(sorted(FLOATS)))
    def test_equal_ones_stay_what_they_are(self, seed: int, count: int, kind: str) -> None:
        node = nodes_of(np.random.default_rng(seed), 1, FLOATS[kind])[0]
        for got, same in zip(adasum_simulate([node] * count), node, strict=True):
            np.testing.assert_array_equal(got.astype(np.float32), same.astype(np.float32))

    @given(seeds, counts, st.integers(-20, 20))
    def test_a_common_scale_goes_through(self, seed: int, count: int, power: int) -> None:
        nodes = nodes_of(np.random.default_rng(seed), count)
        scaled = [[np.asarray(np.float32(2.0**power) * array) for array in node] for node in nodes]
        for got, plain in zip(adasum_simulate(scaled), adasum_simulate(nodes), strict=True):
            assert_same_bits(got, np.asarray(np.float32(2.0**power) * plain))

    @given(seeds, st.floats(0.01, 100), st.floats(0.01, 100))
    def test_of_two_only_the_angle_makes_the_coefficients(self, seed: int, of_a: float, of_b: float) -> None:
        """Scaled by s and t, two vectors give (1 - cos t|b| / 2 s|a|) s a + (1 - cos s|a| / 2 t|b|) t b."""
        a, b = np.random.default_rng(seed).standard_normal((2, 40))
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        ratio = of_b * np.linalg.norm(b) / (of_a * np.linalg.norm(a))
        expected = (1 - cosine * ratio / 2) * of_a * a + (1 - cosine / ratio / 2) * of_b * b
        got = adasum_simulate([[(of_a * a).astype(np.float32)], [(of_b * b).astype(np.float32)]])[0]
        np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())

    @given(seeds, counts, st.data())
    def test_a_node_of_zeros_changes_nothing(self, seed: int, count: int, data: Any) -> None:
        """A vector of norm zero has coefficient 1, wherever it stands in the tree."""
        node = nodes_of(np.random.default_rng(seed), 1)[0]
        zeros = [np.zeros_like(array) for array in node]
        where = data.draw(st.integers(0, count - 1))
        got = adasum_simulate([node if k == where else zeros for k in range(count)])
        for array, same in zip(got, node, strict=True):
            np.testing.assert_array_equal(array, same)


def run(plans: list[Any], vectors: list[np.ndarray], sizes: list[int]) -> list[np.ndarray]:
    """All ranks of one dtype in turns, by the same native functions that a run over ranks calls."""
    words = 12 * len(sizes)

    def dots(a: np.ndarray, b: np.ndarray, index: int) -> np.ndarray:
        found = np.empty(words, np.float32)
        adasum_parts.dots(a, b, sizes, index, found)
        return found

    def combined(parts: list[Any], found: list[Any], plan: Any, exchange: Any) -> np.ndarray:
        a, b, index = parts[plan.rank]
        out = np.empty_like(a)
        everything = np.concatenate([found[rank] for rank in exchange.holders])
        adasum_parts.combine(a, b, sizes, index, everything, out)
        return out

    size, devices = len(vectors[0]), plans[0].device_number
    share = size // devices
    own = [v[p.rank % devices * share :][:share].copy() for v, p in zip(vectors, plans, strict=True)]
    index = [p.rank % devices for p in plans]
    receivers = [p for p in plans if p.fold is not None and not p.gives_away]
    parts: list[Any] = [None] * len(plans)
    for p in receivers:
        parts[p.rank] = own[p.rank], own[p.fold.pair[1]], index[p.rank]
    found = [None if part is None else dots(*part) for part in parts]
    for p in receivers:
        own[p.rank] = combined(parts, found, p, p.fold)
    for level in range(max(len(p.levels) for p in plans)):
        active = [p for p in plans if p.levels]
        parts = [None] * len(plans)
        for p in active:
            low, high = p.levels[level].pair
            upper = p.rank == high
            half = len(own[p.rank]) // 2
            keep = slice(half, None) if upper else slice(half)
            index[p.rank] = 2 * index[p.rank] + upper
            parts[p.rank] = own[low][keep].copy(), own[high][keep].copy(), index[p.rank]
        found = [None if part is None else dots(*part) for part in parts]
        for p in active:
            own[p.rank] = combined(parts, found, p, p.levels[level])
    part = size // plans[0].part_count
    return [array[:part] for array in own]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group_number", "device_number"), LAYOUTS)
def test_the_schedule_gives_the_bits_of_the_simulator(
    rng: np.random.Generator, group_number: int, device_number: int, dtype: Any
) -> None:
    nodes = nodes_of(rng, group_number, dtype)
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    ranks = group_number * device_number
    plans = [schedule(rank, device_number, group_number) for rank in range(ranks)]
    vectors = []
    for rank in range(ranks):
        vector = np.full(padded(sum(sizes), plans[0].part_count), 7, dtype)
        adasum_parts.pack(nodes[rank // device_number], vector)
        vectors.append(vector)
    gathered = np.concatenate(run(plans, vectors, sizes))
    old = nodes_of(rng, 1, dtype)[0]
    weights = [np.zeros_like(array) for array in old]
    adasum_parts.apply(gathered, list(plans[0].parts), old, weights)
    for got, before, delta in zip(weights, old, adasum_simulate(nodes, device_number), strict=True):
        assert_same_bits(got, np.asarray(before.astype(np.float32) - delta.astype(np.float32)).astype(dtype))


@pytest.mark.parametrize(("group_number", "device_number"), [*LAYOUTS, (16, 4)])
def test_the_schedule_is_one_plan_seen_by_each_rank(group_number: int, device_number: int) -> None:
    ranks = group_number * device_number
    plans = [schedule(rank, device_number, group_number) for rank in range(ranks)]
    power = max(p for p in (1, 2, 4, 8, 16, 32, 64) if p <= group_number)
    held = sorted(part for part in plans[0].parts if part >= 0)
    assert held == list(range(power * device_number))
    for plan in plans:
        assert plan.parts == plans[0].parts
        assert plan.gives_away == (plan.parts[plan.rank] < 0) == (plan.rank >= power * device_number)
        assert len(plan.levels) == (0 if plan.gives_away else power.bit_length() - 1)
        for i, exchange in enumerate(plan.levels):
            assert plan.rank in exchange.pair
            assert plan.rank in exchange.holders
            assert exchange.pair[1] - exchange.pair[0] == device_number << i
            assert len(exchange.holders) == device_number * 2 << i
            assert {plans[r].levels[i] for r in exchange.pair} == {exchange}
            assert {plans[r].levels[i].holders for r in exchange.holders} == {exchange.holders}
        if plan.fold is not None:
            assert plan.rank in plan.fold.pair
            assert {plans[r].fold for r in plan.fold.pair} == {plan.fold}


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ((0.0, 1, 2), TypeError, "AdaSum: rank must be an int, got float"),
            ((0, True, 2), TypeError, "AdaSum: device_number must be an int, got bool"),
            ((-1, 1, 2), ValueError, "AdaSum: rank must be >= 0, got -1"),
            ((0, 0, 2), ValueError, "AdaSum: device_number must be >= 1, got 0"),
            ((0, 1, 0), ValueError, "AdaSum: group_number must be >= 1, got 0"),
            ((4, 2, 2), ValueError, "AdaSum: rank must be < 4, got 4"),
        ],
    )
    def test_of_the_schedule(self, arguments: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=f"^{message}$"):
            schedule(*arguments)

    @pytest.mark.parametrize(
        ("deltas", "error", "message"),
        [
            (np.ones((2, 3)), TypeError, "deltas must be a list with a list of arrays for each node"),
            ([np.ones(3, np.float32)], TypeError, "deltas must be a list with a list of arrays for each node"),
            ([], ValueError, "deltas must hold at least one node, with at least one array each, got none"),
            ([[], []], ValueError, "deltas must hold at least one node, with at least one array each, got none"),
            (
                [[np.ones(3, np.float32)], [np.ones(4, np.float32)]],
                ValueError,
                r"deltas\[1\] must have the shapes and dtypes of deltas\[0\]",
            ),
        ],
    )
    def test_of_the_simulator(self, deltas: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=f"^adasum_simulate: {message}$"):
            adasum_simulate(deltas)

    def test_a_dtype_that_no_kernel_has(self) -> None:
        with pytest.raises(TypeError, match="float32, float16 or bfloat16, got float64"):
            adasum_simulate([[np.ones(3)], [np.ones(3)]])

    def test_devices(self) -> None:
        with pytest.raises(ValueError, match="adasum_simulate: device_number must be >= 1, got 0"):
            adasum_simulate([[np.ones(3, np.float32)]], 0)
