"""The parts of adasum over ranks: what each does to a cut vector; tests/test_adasum_simulate.py puts them together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adasum_parts
import oracle
from boost_ext import ops
from dtypes import DTYPES, SUMMED, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")

SHAPES = [(5,), (0,), (4096, 2), (), (3, 11), (2, 0)]
SIZES = [int(np.prod(s)) for s in SHAPES]
PARTS = [1, 2, 3, 16]
HALVES = DTYPES[1:]


def tensors_of(rng: np.random.Generator, dtype: Any) -> list[Any]:
    return [np.asarray(normal(rng, s, dtype)) for s in SHAPES]


def packed(tensors: list[Any], parts: int) -> Any:
    length = -(-sum(SIZES) // parts) + 3
    vector = np.full(parts * length, 7, tensors[0].dtype)
    adasum_parts.pack(tensors, vector)
    return vector


def decoded(words: np.ndarray) -> np.ndarray:
    """(T, 3) float64 of the 16-bit numbers."""
    assert words.dtype == np.float32
    assert (words == words.astype(np.uint16)).all()
    return words.astype(np.uint16).view(np.float64).reshape(-1, 3)


def dots_of(a: Any, b: Any, index: int) -> np.ndarray:
    words = np.full(12 * len(SIZES), np.nan, np.float32)
    adasum_parts.dots(a, b, SIZES, index, words)
    return words


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pack(rng: np.random.Generator, dtype: Any, parts: int) -> None:
    tensors = tensors_of(rng, dtype)
    vector = packed(tensors, parts)
    flat = np.concatenate([t.ravel() for t in tensors])
    assert_same_bits(vector[: len(flat)], flat)
    assert not vector[len(flat) :].astype(bool).any()
    others = tensors_of(rng, dtype)
    adasum_parts.pack_difference(tensors, others, vector)
    exact = oracle.flat(tensors) - oracle.flat(others)
    assert_close(vector[: len(flat)], exact, abs(oracle.flat(tensors)) + abs(oracle.flat(others)), roundings=1)
    assert not vector[len(flat) :].astype(bool).any()
    copies = [np.empty_like(t) for t in tensors]
    adasum_parts.keep(tensors, None, copies)
    for copy, tensor in zip(copies, tensors, strict=True):
        assert_same_bits(copy, tensor)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_make_the_whole(rng: np.random.Generator, dtype: Any, parts: int) -> None:
    a, b = tensors_of(rng, dtype), tensors_of(rng, dtype)
    pairs = list(zip(np.split(packed(a, parts), parts), np.split(packed(b, parts), parts), strict=True))
    words = [dots_of(x, y, i) for i, (x, y) in enumerate(pairs)]
    total = sum(decoded(w) for w in words)
    for row, x, y in zip(total, a, b, strict=True):
        x, y = oracle.flat([x]), oracle.flat([y])
        error = abs(row - oracle.adasum_dots(x, y))
        assert (error <= (1e-12 + SUMMED[dtype.name]) * oracle.adasum_dots(abs(x), abs(y))).all()
    combined = []
    for i, (x, y) in enumerate(pairs):
        out = np.full_like(x, 7)
        adasum_parts.combine(x, y, SIZES, i, np.concatenate(words), out)
        combined.append(out)
    for got, expected in zip(
        np.split(np.concatenate(combined), np.cumsum(SIZES)), ops.adasum_combine(a, b, total), strict=False
    ):
        assert_same_bits(got, expected.ravel())
    assert not np.concatenate(combined)[sum(SIZES) :].astype(bool).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_apply_puts_the_parts_where_they_belong(rng: np.random.Generator, dtype: Any) -> None:
    old, delta = tensors_of(rng, dtype), tensors_of(rng, dtype)
    pieces = np.split(packed(delta, 4), 4)
    junk = np.full_like(pieces[0], np.nan)
    vector = np.concatenate([pieces[2], junk, pieces[0], pieces[3], pieces[1]])
    weights = [np.full_like(t, 7) for t in old]
    parts = [2, -1, 0, 3, 1]
    adasum_parts.apply(vector, parts, old, weights)
    expected = [np.asarray(o.astype(np.float32) - d.astype(np.float32)).astype(dtype) for o, d in zip(old, delta)]  # noqa: B905
    for got, e in zip(weights, expected, strict=True):
        assert_same_bits(got, e)
    adasum_parts.apply(vector, parts, old, old)  # in place
    for got, e in zip(old, expected, strict=True):
        assert_same_bits(got, e)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_beside_their_masters(rng: np.random.Generator, dtype: Any) -> None:
    """Every second tensor is a master; its half was set from outside at every third element."""
    masters, deltas = tensors_of(rng, np.float32), tensors_of(rng, np.float32)
    empty = np.empty(0, np.float32)
    halves = [m.astype(dtype) if i % 2 == 0 else empty for i, m in enumerate(masters)]
    expected = [m.copy() for m in masters]
    for half, e in zip(halves[::2], expected[::2], strict=True):
        before = half.copy()
        half.reshape(-1)[::3] = 0.375
        e[half != before] = 0.375
    kept = [np.full_like(m, 7) for m in masters]
    copies = [h.copy() for h in halves]
    adasum_parts.keep(masters, halves, kept)
    for got in (masters, kept):
        for g, e in zip(got, expected, strict=True):
            assert_same_bits(g, e)
    for half, copy in zip(halves, copies, strict=True):
        assert_same_bits(half, copy)
    pieces = np.split(packed(deltas, 2), 2)
    adasum_parts.apply(np.concatenate(pieces[::-1]), [1, 0], kept, masters, halves)
    for i, (master, half, k, d) in enumerate(zip(masters, halves, kept, deltas, strict=True)):
        assert_same_bits(master, np.asarray(k - d))
        assert_same_bits(half, np.asarray(k - d).astype(dtype) if i % 2 == 0 else empty)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -1e300, 5e-324, np.inf, np.nan])
def test_a_float64_travels_as_it_is(value: float) -> None:
    """Whatever the dot product is; and adding zeros to what travels changes nothing."""
    words = np.array([value]).view(np.uint16).astype(np.float32)
    assert_same_bits((words + np.float32(0)).astype(np.uint16).view(np.float64), np.array([value]))
    a = np.array([1.0, 2.0], np.float32)
    dots = np.concatenate([np.array([v]).view(np.uint16) for v in (value, 4.0, np.inf)]).astype(np.float32)
    out = np.empty_like(a)
    adasum_parts.combine(a, a, [2], 0, dots, out)
    with np.errstate(invalid="ignore", over="ignore"):
        of_a = np.float32(1 - value / 8)
        of_b = np.float32(1 - value / np.inf)
    np.testing.assert_array_equal(out, of_a * a + of_b * a)


def test_nan_and_inf_reach_the_dots() -> None:
    a, b = np.array([1, np.inf, 2], np.float32), np.array([1, 1, np.nan], np.float32)
    words = np.empty(12 * 2, np.float32)
    adasum_parts.dots(a, b, [2, 1], 0, words)
    found = decoded(words)
    np.testing.assert_array_equal(found[0], [np.inf, np.inf, 2])
    assert np.isnan(found[1][[0, 2]]).all()


F, W = np.ones(8, np.float32), np.zeros(12, np.float32)
HALF = F.astype(np.float16)


def called(op: str, **changed: Any) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "dots": {"a": F, "b": F + 1, "sizes": [8], "index": 0, "dots": W.copy()},
        "combine": {"a": F, "b": F + 1, "sizes": [8], "index": 0, "dots": W, "out": np.empty_like(F)},
        "pack": {"tensors": [F], "vector": np.empty(9, np.float32)},
        "keep": {"weights": [F.copy()], "halves": [HALF], "out": [np.empty_like(F)]},
        "pack_difference": {"a": [F], "b": [F], "vector": np.empty(9, np.float32)},
        "apply": {"vector": F, "parts": [1, 0], "old": [F], "weights": [np.empty_like(F)], "halves": None},
    }
    getattr(adasum_parts, op)(**{**arguments[op], **changed})


@pytest.mark.parametrize("op", ["dots", "combine", "pack", "keep", "pack_difference", "apply"])
def test_a_valid_call(op: str) -> None:
    called(op)


@pytest.mark.parametrize(
    ("op", "changed", "error", "message"),
    [
        ("dots", {"b": HALF}, TypeError, "b must be float32, got float16"),
        ("dots", {"b": F[:4].copy()}, ValueError, "b must have 8 elements, got 4"),
        ("dots", {"sizes": []}, ValueError, "plan must hold at least one size"),
        ("dots", {"sizes": [-1]}, ValueError, "sizes must be >= 0, got -1"),
        ("dots", {"index": -1}, ValueError, "index must be >= 0, got -1"),
        ("dots", {"dots": np.zeros(3)}, TypeError, "dots must be float32, got float64"),
        ("dots", {"sizes": [4, 4]}, ValueError, "dots must have 24 elements, got 12"),
        ("combine", {"dots": W[:11].copy()}, ValueError, "dots must have a multiple of 12 elements, got 11"),
        ("combine", {"out": np.empty(8, np.float16)}, TypeError, "out must be float32, got float16"),
        ("pack", {"vector": np.empty(7, np.float32)}, ValueError, "vector must have at least 8 elements, got 7"),
        ("pack", {"vector": np.empty(9, np.float16)}, TypeError, "vector must be float32, got float16"),
        ("pack", {"tensors": []}, ValueError, "tensors must hold at least one array, got an empty list"),
        ("keep", {"out": [HALF]}, TypeError, r"out\[0\] must be float32, got float16"),
        ("keep", {"weights": [F], "out": [F]}, ValueError, r"(out|weights)\[0\] is written and must not overlap"),
        ("keep", {"halves": [F]}, ValueError, r"halves\[0\] must be float16 or bfloat16, got float32"),
        ("keep", {"halves": [HALF[:4].copy()]}, ValueError, r"halves\[0\] must have 8 elements, got 4"),
        ("keep", {"weights": [HALF], "out": [HALF.copy()]}, TypeError, r"weights\[0\] must be float32, got float16"),
        ("apply", {"halves": [HALF, HALF]}, ValueError, "plan must hold numbers below 1, got 1"),
        ("pack_difference", {"b": [F, F]}, ValueError, "must get 2 lists of one length, got 3 arrays"),
        ("apply", {"vector": HALF}, TypeError, "vector must be float32, got float16"),
        ("apply", {"parts": [0, 1, 2]}, ValueError, "vector must have a multiple of 3 elements, got 8"),
        ("apply", {"parts": [0, -1]}, ValueError, "parts must hold each of the 8 elements once, got 4"),
    ],
)
def test_errors(op: str, changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^adasum_part_{op}: {message}"):
        called(op, **changed)
