"""Curvature and Adafactor on CUDA: answers and flags on the device, many tiles, parts and jobs, any alignment.
tests/ops has the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import device
import kfac
from boost_ext import _core, ops
from dtypes import DTYPES, UNIT, assert_close, assert_same_bits, normal
from on_cuda import needs_cuda
from ops.producers import Producer

pytestmark = needs_cuda


def cpu(op: str) -> Callable[..., Any]:
    return inspect.unwrap(getattr(ops, op))


def cuda(op: str) -> Callable[..., Any]:
    return device.on_device(cpu(op), *device.memory_of("cuda"))


def positive(rng: np.random.Generator, batch: int, n: int) -> np.ndarray:
    root = rng.standard_normal((batch, n, n + 3))
    return root @ root.transpose(0, 2, 1) / n


# damped_inverse


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_the_answer_goes_where_it_is_wanted(rng, where, good):
    matrices = [positive(rng, 2, 5), np.float64([1, 2, 3])]
    if not good:
        matrices[1][2] = -1
    out = [np.full(m.shape, 7, np.float32) for m in matrices]
    inverted = np.full(1, np.nan, np.float32)
    run = (cuda if where == "cuda" else cpu)("damped_inverse")
    assert run(matrices, out, inverted=inverted) is inverted
    assert inverted[0] == (1 if good else 0)
    np.testing.assert_allclose(out[0] @ matrices[0], np.broadcast_to(np.eye(5), (2, 5, 5)), atol=1e-5)
    np.testing.assert_array_equal(out[1], np.float32([1, 1 / 2, 1 / 3]) if good else np.full(3, 7))


def test_the_answer_stays_on_the_device(rng):
    """Nobody waits for it, unless he asks."""
    memory, kind = device.memory_of("cuda")
    matrices, out = positive(rng, 1, 3), np.zeros((1, 3, 3), np.float32)
    image = device.Image([matrices, out])
    on = memory(image.bytes)
    try:
        m, o = (Producer(a, data=on.address + image.place(a), device=(kind, 0)) for a in (matrices, out))
        answer = cpu("damped_inverse")(m, o)
        assert isinstance(answer, _core.DeviceArray)
        assert answer.numpy().tolist() == [1]
    finally:
        on.free()


@pytest.mark.parametrize(
    ("inverted", "error", "text"),
    [
        (np.ones(2, np.float32), ValueError, "inverted must have 1 element"),
        (np.ones(1, np.float64), TypeError, "inverted must be float32, got float64"),
    ],
)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_places_for_the_answer_that_do_not_fit(where, inverted, error, text):
    run = (cuda if where == "cuda" else cpu)("damped_inverse")
    with pytest.raises(error, match=f"^damped_inverse: {text}"):
        run(np.eye(2)[None], np.zeros((1, 2, 2), np.float32), inverted=inverted)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e300])
@pytest.mark.parametrize("place", [(0, 0), (0, 39), (31, 32), (20, 25), (39, 39)])
def test_one_bad_element_anywhere(rng, place, bad):
    """In a tile of the diagonal, beside one, in the last one: only its matrix stays."""
    matrices = positive(rng, 3, 40)
    matrices[1][place] = bad
    out = np.full((3, 40, 40), 7, np.float32)
    done = cuda("damped_inverse")(matrices, out, damping=0.1)
    exact = [kfac.damped_inverse(m, 0.1) for m in matrices[[0, 2]]]
    np.testing.assert_allclose(out[[0, 2]], exact, atol=1e-5 * np.abs(exact).max())
    large = bad == 1e300 and place[0] == place[1]  # still positive definite, and well
    assert done is large
    assert large or (out[1] == 7).all()
    assert not large or np.isfinite(out[1]).all()


def test_many_matrices_of_many_sizes(rng):
    """More than one launch takes."""
    matrices = [positive(rng, 1, 1 + i % 3) if i % 2 else np.full(1 + i % 5, 1.0 + i) for i in range(600)]
    out = [np.zeros(m.shape, np.float32) for m in matrices]
    assert cuda("damped_inverse")(matrices, out, damping=0.25)
    for m, o in zip(matrices, out, strict=True):
        exact = 1 / (m + 0.25) if m.ndim == 1 else np.linalg.inv(m + 0.25 * np.eye(m.shape[1]))
        assert_close(o, exact, 1e-4 * abs(exact).max() * np.ones_like(exact), roundings=1)


# covariance


@pytest.mark.parametrize("shape", [(2500, 130), (1100, 65), (513, 64), (512, 63)])
def test_rows_in_parts_and_tiles(rng, shape):
    x = normal(rng, shape)
    out = cuda("covariance")(x, np.full((1, shape[1], shape[1]), np.nan))
    exact, bound = (kfac.blocks_of(kfac.covariance(a, 1.0), shape[1]) for a in (x, abs(x)))
    assert (abs(out - exact) <= 129 * UNIT["float32"] * bound).all()
    np.testing.assert_array_equal(out, out.transpose(0, 2, 1))


def test_counts_of_many_indices(rng):
    index = rng.integers(-3, 13, 20_000).astype(np.int32)
    out = cuda("covariance")(index, np.full(10, np.nan), factor=0.5, one_hot=True)
    np.testing.assert_array_equal(out, 0.5 * np.bincount(index[(index >= 0) & (index < 10)], minlength=10))
    np.testing.assert_array_equal(cuda("covariance")(index[:0], np.full(3, np.nan), one_hot=True), np.zeros(3))


# precondition


@pytest.mark.parametrize("dtype", DTYPES)
def test_diagonals_have_the_bits_of_the_cpu(rng, dtype):
    grads = [normal(rng, s, dtype) for s in [(3, 5), (70, 100), (1, 4097)]]
    left, right = ([normal(rng, n) for n in sizes] for sizes in ([3, 70, 1], [5, 100, 4097]))
    one, two = ([np.full(g.shape, np.nan, np.float32) for g in grads] for _ in range(2))
    cpu("precondition")(grads, left, right, one, inv_scale=0.3)
    cuda("precondition")(grads, left, right, two, inv_scale=0.3)
    for a, b in zip(one, two, strict=True):
        assert_same_bits(b, a)


@pytest.mark.parametrize("count", [1, 450])
def test_more_gradients_than_a_launch_takes(rng, count):
    grads = [normal(rng, (2 + i % 3, 3)) for i in range(count)]
    left = [normal(rng, (1, len(g), len(g))) for g in grads]
    right = [normal(rng, (2, 2, 2)) for _ in grads]
    out = [np.full(g.shape, np.nan, np.float32) for g in grads]
    cuda("precondition")(grads, left, right, out)
    for g, lhs, rhs, o in zip(grads, left, right, out, strict=True):
        L, R = lhs[0].astype(np.float64), kfac.from_blocks(rhs, 3)
        bound = 8 * UNIT["float32"] * abs(L) @ abs(g) @ abs(R)
        assert (abs(o - L @ g @ R) <= bound).all()


# adafactor_step


def adafactor(rng: np.random.Generator, shapes: list[Any], dtype: Any = np.float32) -> dict[str, Any]:
    matrices = [len(s) >= 2 for s in shapes]
    return {
        "params": [normal(rng, s, dtype) for s in shapes],
        "grads": [normal(rng, s) for s in shapes],
        "rows": [np.zeros(s[:-1], np.float32) if m else None for s, m in zip(shapes, matrices, strict=True)],
        "columns": [
            np.zeros(s[:-2] + s[-1:], np.float32) if m else None for s, m in zip(shapes, matrices, strict=True)
        ],
        "squares": [None if m else np.zeros(s, np.float32) for s, m in zip(shapes, matrices, strict=True)],
        "moments": [np.zeros(s, np.float32) for s in shapes],
    }


def copies(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: [None if a is None else a.copy() for a in arrays] for key, arrays in arguments.items()}


def assert_near(one: dict[str, Any], two: dict[str, Any], exact: bool = False) -> None:
    for key in one:
        for a, b in zip(one[key], two[key], strict=True):
            if exact and a is not None:
                assert_same_bits(a, b)
            elif a is not None:
                np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("flag", [0.0, 1.0, np.nan])
def test_a_skipped_step_writes_nothing(rng, where, flag):
    shapes = [(3, 4), (5,), (60, 70), (2, 3, 3, 3)]
    before = adafactor(rng, shapes, np.float16)
    before["masters"] = [w.astype(np.float32) + np.float32(1) for w in before["params"]]  # they would follow
    stepped, plain = copies(before), copies(before)
    options: dict[str, Any] = {"step": 1, "beta1": 0.9, "centralize": True}
    run = (cuda if where == "cuda" else cpu)("adafactor_step")
    run(**stepped, **options, skip=np.array([flag], np.float32))
    if flag == 0:
        run(**plain, **options)
    assert_near(stepped, plain, exact=True)
    assert (flag == 0) == bool((stepped["params"][0] != before["params"][0]).any())


@pytest.mark.parametrize("skip", [np.ones(2, np.float32), np.ones(1, np.float64)], ids=["size", "dtype"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_flags_that_do_not_fit(rng, where, skip):
    run = (cuda if where == "cuda" else cpu)("adafactor_step")
    with pytest.raises((ValueError, TypeError), match=r"^adafactor_step: skip must "):
        run(**adafactor(rng, [(3,)]), step=1, beta1=0.9, skip=skip)


# Each width of a tile's lanes; bands of rows and parts of columns; matrices around the size that a block has whole.
SHAPES: list[Any] = [(1, 1500), (1500, 1), (700, 2), (300, 5), (90, 12), (40, 31), (33, 32), (32, 32), (130, 257)]
SHAPES += [(2, 3, 70, 17), (3, 1025), (5, 7, 9), (2, 2, 512)]


@pytest.mark.parametrize("centralize", [False, True])
def test_tiles_of_all_widths(rng, centralize):
    one = adafactor(rng, SHAPES)
    two = copies(one)
    for t in (1, 2):
        for run, arguments in ((cpu, one), (cuda, two)):
            run("adafactor_step")(**arguments, step=t, lr=0.1, beta1=0.9, centralize=centralize)
    assert_near(one, two)


def test_addresses_of_any_alignment(rng):
    """Arrays that begin in the middle of 16 bytes."""
    one = adafactor(rng, [(7, 9), (301,)])
    two = copies(one)
    for key, arrays in two.items():
        for i, a in enumerate(arrays):
            if a is not None:
                place = np.empty(a.size + 1, a.dtype)[1:].reshape(a.shape)
                place[...] = a
                two[key][i] = place
    for arguments in (one, two):
        cuda("adafactor_step")(**arguments, step=1, beta1=0.9)
    assert_near(one, two, exact=True)


# What MindSpore calls is for the CPU


@pytest.mark.parametrize("op", ["covariance", "damped_inverse", "precondition"])
def test_the_functions_of_graphs_refuse_device_arrays(op):
    run = device.on_device(_core.call, *device.memory_of("cuda"))
    with pytest.raises(RuntimeError, match=rf"^{op}: got CUDA arrays, but this op has a CPU kernel only$"):
        run(op, [np.zeros(15, np.int32), np.ones((2, 2), np.float32)])
