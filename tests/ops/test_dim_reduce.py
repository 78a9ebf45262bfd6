from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, SIZES, UNIT, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")

RATES = {"gamma": 0.9, "alpha": 0.001, "rho": 0.55}


def exact(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


# Direction


def subspace(rng: np.random.Generator, k: int) -> dict[str, np.ndarray]:
    root = rng.standard_normal((k, k))
    B = (root @ root.T / k + np.eye(k)).astype(np.float32)
    s, gk_last = normal(rng, k), normal(rng, k)
    return {
        "B": np.triu(B) + np.triu(B, 1).T,
        "s": s,
        "gk_last": gk_last,
        "gk": (gk_last + s).astype(np.float32),
        "B_next": np.full((k, k), np.nan, np.float32),
        "dk": np.full(k, np.nan, np.float32),
    }


@pytest.mark.parametrize("k", [1, 2, 3, 15, 16, 17, 32, 33, 65])
@pytest.mark.parametrize("started", [False, True])
def test_direction(rng, k, started):
    x = subspace(rng, k)
    fixed = {n: x[n].copy() for n in ("B", "s", "gk_last")}
    gk = x["gk"].copy()
    x["gk"] *= 256
    slope = ops.dim_reduce_direction(**x, started=started, inv_scale=1 / 256)
    for n, before in fixed.items():
        assert_same_bits(x[n], before)
    assert_same_bits(x["gk"], gk)
    expected = x["B"].copy()
    if started:
        ops.bfgs_update(expected, x["s"], gk - x["gk_last"])
    assert_same_bits(x["B_next"], expected)
    dk = -exact(x["B_next"]) @ exact(gk)
    assert_close(x["dk"], dk, abs(exact(expected)) @ abs(exact(gk)) * k * 2.0**-26, roundings=1)
    assert slope == pytest.approx(exact(gk) @ exact(x["dk"]), rel=1e-12)
    assert slope < 0

    whole = oracle.dim_reduce_direction(
        *(exact(fixed[n]) for n in ("B", "s", "gk_last")), started, exact(gk), 1.0, 1e-20
    )
    scale = abs(whole.B_next).max() * k
    np.testing.assert_allclose(x["dk"], whole.dk, rtol=0, atol=64 * UNIT["float32"] * scale)
    assert slope == pytest.approx(whole.slope, rel=1e-4)


def test_direction_does_not_update_without_curvature(rng):
    x = subspace(rng, 5)
    x["gk"][:] = x["gk_last"] - x["s"]
    ops.dim_reduce_direction(**x, started=True)
    assert_same_bits(x["B_next"], x["B"])


def test_direction_before_the_first_step_reads_no_history(rng):
    x = subspace(rng, 5)
    x["s"][:] = x["gk_last"][:] = np.nan
    assert math.isfinite(ops.dim_reduce_direction(**x, started=False))
    assert_same_bits(x["B_next"], x["B"])


@pytest.mark.parametrize("power", [-20, -1, 1, 15])
def test_loss_scale_changes_no_bit_of_the_direction(rng, power):
    x = subspace(rng, 9)
    y = {n: v.copy() for n, v in x.items()}
    y["gk"] *= np.float32(2.0**power)
    one = ops.dim_reduce_direction(**x, started=True)
    assert ops.dim_reduce_direction(**y, started=True, inv_scale=2.0**-power) == one
    for n in x:
        assert_same_bits(y[n], x[n])


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("place", [0, -1])
def test_bad_gradient_spoils_the_slope_but_not_the_state(rng, bad, place):
    x = subspace(rng, 5)
    before = x["B"].copy()
    x["gk"][place] = bad
    assert not math.isfinite(ops.dim_reduce_direction(**x, started=True))
    assert_same_bits(x["B"], before)


def test_direction_leaves_the_slope_in_out(rng):
    x = subspace(rng, 9)
    y = {n: v.copy() for n, v in x.items()}
    out = np.full(1, np.nan)
    assert ops.dim_reduce_direction(**x, started=True, out=out) is out
    assert out[0] == ops.dim_reduce_direction(**y, started=True)
    with pytest.raises(TypeError, match=r"^dim_reduce_direction: out must be float64, got float32$"):
        ops.dim_reduce_direction(**x, started=True, out=np.ones(1, np.float32))
    with pytest.raises(ValueError, match=r"^dim_reduce_direction: out must have 1 elements, got 2$"):
        ops.dim_reduce_direction(**x, started=True, out=np.ones(2))


# Trial


def trial(rng: np.random.Generator, shapes: list[int | tuple[int, ...]], dtypes: list[np.dtype]) -> tuple:
    saved = [normal(rng, s, d) for s, d in zip(shapes, dtypes, strict=True)]
    weights = [np.full(s, np.nan, d) for s, d in zip(shapes, dtypes, strict=True)]
    return weights, saved, [normal(rng, s) for s in shapes]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("save", [False, True])
def test_trial(rng, dtype, size, save):
    weights, saved, dn = trial(rng, [size], [dtype])
    kept = saved[0].copy()
    if save:
        weights, saved = saved, weights
    assert ops.dim_reduce_trial(weights, saved, dn, 0.1, save=save) is weights
    assert_same_bits(saved[0], kept)
    magnitude = abs(exact(kept)) + abs(exact(dn[0]))
    assert_close(weights[0], oracle.dim_reduce_trial(exact(kept), exact(dn[0]), 0.1), magnitude, 3)


def test_trial_has_a_step_for_each_tensor(rng):
    shapes = [(), (3,), (0,), (2, 3, 4), (4097,)] * 10
    kinds = [list(FLOATS.values())[i % 3] for i in range(len(shapes))]
    weights, saved, dn = trial(rng, shapes, kinds)
    step = normal(rng, len(shapes))
    ops.dim_reduce_trial(weights, saved, dn, step)
    for w, kept, d, t in zip(weights, saved, dn, step, strict=True):
        magnitude = abs(exact(kept)) + abs(t * exact(d))
        assert_close(w, oracle.dim_reduce_trial(exact(kept), exact(d), float(t)), magnitude, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_step_zero_restores_every_bit(rng, dtype, zero):
    """Also of a signaling nan and of -0, and whatever a failed direction holds."""
    weights, saved, dn = trial(rng, [9000], [dtype])
    saved[0].view(f"u{dtype.itemsize}")[:3] = 1 << (8 * dtype.itemsize - 1), 0x7F81, 1
    dn[0][::2] = np.inf
    dn[0][1::2] = np.nan
    kept = saved[0].copy()
    ops.dim_reduce_trial(weights, saved, dn, zero)
    assert_same_bits(weights[0], kept)
    assert_same_bits(saved[0], kept)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_point_of_a_search_starts_from_the_saved_weights(rng, dtype):
    """As many as there are: the points before leave nothing behind."""
    weights, saved, dn = [normal(rng, 5000, dtype)], [np.empty(5000, dtype)], [normal(rng, 5000)]
    start = weights[0].copy()
    for m in range(8):
        ops.dim_reduce_trial(weights, saved, dn, 0.55**m, save=m == 0)
        alone = [np.empty(5000, dtype)]
        ops.dim_reduce_trial(alone, [start.copy()], dn, 0.55**m)
        assert not np.array_equal(weights[0], start)
        assert_same_bits(weights[0], alone[0])
    ops.dim_reduce_trial(weights, saved, dn, 0)
    assert_same_bits(weights[0], start)


@pytest.mark.parametrize("number", [0.25, 1, np.float32(0.25), np.float64(0.25), np.int64(1)], ids=repr)
def test_step_may_be_any_real_number(number):
    w = ops.dim_reduce_trial(np.zeros(2, np.float32), np.zeros(2, np.float32), np.ones(2, np.float32), number)
    np.testing.assert_array_equal(w, [number, number])


@pytest.mark.parametrize("step", [math.inf, math.nan, 1e300, 10**400], ids=["inf", "nan", "1e300", "huge"])
def test_step_must_be_a_finite_float32(rng, step):
    weights, saved, dn = trial(rng, [5], [np.dtype(np.float32)])
    before = weights[0].copy()
    with pytest.raises(ValueError, match=r"^dim_reduce_trial: step must be finite, got "):
        ops.dim_reduce_trial(weights, saved, dn, step)
    assert_same_bits(weights[0], before)


def test_steps_are_one_or_one_a_tensor(rng):
    weights, saved, dn = trial(rng, [5, 6, 7], [np.dtype(np.float32)] * 3)
    with pytest.raises(
        ValueError, match=r"^dim_reduce_trial: step must have 1 element or one for each of the 3 tensors, got 2$"
    ):
        ops.dim_reduce_trial(weights, saved, dn, np.ones(2, np.float32))


def test_saved_is_written_only_to_save(rng):
    weights, saved, dn = trial(rng, [5], [np.dtype(np.float32)])
    saved[0].flags.writeable = False
    ops.dim_reduce_trial(weights, saved, dn, 1)
    with pytest.raises(ValueError, match=r"^dim_reduce_trial: saved\[0\] must be writable, got a read-only array$"):
        ops.dim_reduce_trial(weights, saved, dn, 1, save=True)


# Apply


def residual(rng: np.random.Generator, shapes: list, dtypes: list[np.dtype]) -> dict[str, list[np.ndarray]]:
    x = {n: [normal(rng, s) for s in shapes] for n in ("momentum", "grad_proj", "dn")}
    return {**x, "grads": [normal(rng, s, d) for s, d in zip(shapes, dtypes, strict=True)]}


def check_apply(x: dict, out: list[np.ndarray], inv_scale: float = 1.0, lr=None, saved=None) -> None:
    before = {n: [exact(t) for t in tensors] for n, tensors in x.items()}
    kept = None if saved is None else [exact(t) for t in saved]
    assert ops.dim_reduce_apply(**x, out=out, **RATES, inv_scale=inv_scale, saved=saved, lr=lr) is out
    gamma, alpha, rho = RATES.values()
    rates = np.broadcast_to(np.asarray(1.0 if lr is None else lr, np.float64), len(out))
    for i, actual in enumerate(out):
        m, g, proj, dn = (before[n][i] for n in ("momentum", "grads", "grad_proj", "dn"))
        momentum = oracle.dim_reduce_momentum(m, g, proj, gamma, inv_scale)
        scale = oracle.dim_reduce_momentum(abs(m), abs(g), -abs(proj), gamma, inv_scale)
        assert_close(x["momentum"][i], momentum, scale, roundings=6)
        delta = oracle.dim_reduce_delta(momentum, dn, alpha, rho)
        scale = oracle.dim_reduce_delta(scale, abs(dn), alpha, -rho)
        if kept is None:
            assert_close(actual, delta, scale, roundings=9)
        else:
            scale = abs(kept[i]) + rates[i] * scale
            assert_close(actual, kept[i] - rates[i] * delta, scale, roundings=12)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_delta(rng, dtype, size):
    check_apply(residual(rng, [size], [dtype]), [np.full(size, np.nan, np.float32)], 2.0**-10)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_grads", DTYPES)
def test_weights(rng, dtype, of_grads, size):
    saved = [normal(rng, size, dtype)]
    check_apply(residual(rng, [size], [of_grads]), [np.full(size, np.nan, dtype)], 1.0, 0.1, saved)


def test_many_tensors_have_a_rate_each(rng):
    shapes = [(), (3,), (0,), (2, 3, 4), (4097,)] * 10
    kinds = [list(FLOATS.values())[i % 3] for i in range(len(shapes))]
    saved = [normal(rng, s, k) for s, k in zip(shapes, kinds[1:] + kinds[:1], strict=True)]
    out = [np.full_like(t, np.nan) for t in saved]
    check_apply(residual(rng, shapes, kinds), out, 0.5, abs(normal(rng, len(shapes))), saved)


def test_delta_may_replace_grad_proj(rng):
    x = residual(rng, [5000, (3, 4)], [np.dtype(np.float32)] * 2)
    y = {n: [t.copy() for t in tensors] for n, tensors in x.items()}
    out = [np.empty_like(t) for t in x["dn"]]
    ops.dim_reduce_apply(**x, out=out, **RATES)
    ops.dim_reduce_apply(**y, out=y["grad_proj"], **RATES)
    for apart, in_place in zip(out, y["grad_proj"], strict=True):
        assert_same_bits(in_place, apart)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_may_be_saved_themselves(rng, dtype):
    x = residual(rng, [5000], [dtype])
    y = {n: [t.copy() for t in tensors] for n, tensors in x.items()}
    saved = normal(rng, 5000, dtype)
    apart = ops.dim_reduce_apply(**x, out=np.empty_like(saved), **RATES, saved=saved, lr=0.1)
    ops.dim_reduce_apply(**y, out=saved, **RATES, saved=saved, lr=0.1)
    assert_same_bits(saved, apart)


@given(power=st.integers(-20, 20), size=st.integers(1, 100), seed=st.integers(0, 2**32 - 1))
def test_loss_scale_changes_no_bit(power, size, seed):
    rng = np.random.default_rng(seed)
    x = residual(rng, [size], [np.dtype(np.float32)])
    y = {n: [t.copy() for t in tensors] for n, tensors in x.items()}
    y["grads"][0] *= np.float32(2.0**power)
    one, two = np.empty(size, np.float32), np.empty(size, np.float32)
    ops.dim_reduce_apply(**x, out=[one], **RATES)
    ops.dim_reduce_apply(**y, out=[two], **RATES, inv_scale=2.0**-power)
    assert_same_bits(two, one)
    assert_same_bits(y["momentum"][0], x["momentum"][0])


def test_no_residual_when_the_gradient_lies_in_the_subspace(rng):
    """g = P^T P g leaves no momentum, and the step is the line search's alone."""
    x = residual(rng, [5000], [np.dtype(np.float32)])
    x["grads"] = [x["grad_proj"][0].copy()]
    x["momentum"][0][:] = 0
    out = ops.dim_reduce_apply(**x, out=[np.empty(5000, np.float32)], **RATES)
    np.testing.assert_array_equal(x["momentum"][0], 0)
    np.testing.assert_array_equal(out[0], -(np.float32(RATES["rho"]) * x["dn"][0]))


def test_refused_direction_is_not_read(rng):
    x = residual(rng, [100], [np.dtype(np.float32)])
    x["dn"][0][:] = np.nan
    out = ops.dim_reduce_apply(**x, out=[np.empty(100, np.float32)], gamma=0.9, alpha=0.5, rho=0)
    np.testing.assert_array_equal(out[0], 0.5 * x["momentum"][0])


@pytest.mark.parametrize("name", ["rho", "inv_scale"])
def test_coefficients_may_be_arrays(rng, name):
    x = residual(rng, [5], [np.dtype(np.float32)])
    y = {n: [t.copy() for t in tensors] for n, tensors in x.items()}
    one, two = np.empty(5, np.float32), np.empty(5, np.float32)
    ops.dim_reduce_apply(**x, out=[one], **{**RATES, name: 0.3})
    ops.dim_reduce_apply(**y, out=[two], **{**RATES, name: np.array([0.3], np.float32)})
    assert_same_bits(two, one)
    assert_same_bits(y["momentum"][0], x["momentum"][0])
    with pytest.raises(TypeError, match=f"^dim_reduce_apply: {name} must be float32, got float64$"):
        ops.dim_reduce_apply(**x, out=[one], **{**RATES, name: np.ones(1)})
    with pytest.raises(ValueError, match=f"^dim_reduce_apply: {name} must have 1 elements, got 2$"):
        ops.dim_reduce_apply(**x, out=[one], **{**RATES, name: np.ones(2, np.float32)})


@pytest.mark.parametrize("name", ["gamma", "alpha", "rho", "inv_scale"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_coefficients_must_be_finite(rng, name, bad):
    x = residual(rng, [5], [np.dtype(np.float32)])
    before = x["momentum"][0].copy()
    with pytest.raises(ValueError, match=f"^dim_reduce_apply: {name} must be finite, got "):
        ops.dim_reduce_apply(**x, out=[np.empty(5, np.float32)], **{**RATES, name: bad})
    assert_same_bits(x["momentum"][0], before)
