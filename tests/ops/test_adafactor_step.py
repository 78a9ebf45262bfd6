"""Adafactor beside its oracle, element by element; its state, its clipping, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, assert_same_bits, normal

from .half_precision import check_masters, check_weights_alone

pytestmark = pytest.mark.usefixtures("isa")

SMALL = [(), (1,), (0,), (5,), (5, 7), (2, 0), (0, 3), (3, 1), (1, 9), (4, 3, 3, 3), (6, 2, 5, 5), (2, 5, 33), (16, 16)]
# Beyond a block, a tile of columns, what one thread does alone; narrow and wide.
LARGE = [(4097,), (70_001,), (65, 64), (70, 3000), (3, 5000), (300, 301), (9000, 8), (64, 130, 3, 3), (3, 200, 150)]
# What float32 makes of a step: the factors' roots and quotients, and 20 steps that add up.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def state_of(
    shape: tuple[int, ...], beta1: float | None = None, kept: Any = np.float32
) -> dict[str, np.ndarray | None]:
    """The arguments of one tensor; what it does not have is None."""
    matrices = len(shape) >= 2
    return {
        "rows": np.zeros(shape[:-1], np.float32) if matrices else None,
        "columns": np.zeros(shape[:-2] + shape[-1:], np.float32) if matrices else None,
        "squares": None if matrices else np.zeros(shape, kept),
        "moments": None if beta1 is None else np.zeros(shape, kept),
    }


class Training:
    """Steps of a list of tensors beside those of the oracle."""

    def __init__(self, weights: list[np.ndarray], kept: Any = np.float32, **hyper: Any) -> None:
        self.hyper = oracle.AdaFactor(**hyper)
        self.weights, self.t = weights, 0
        self.exact = [w.astype(np.float64) for w in weights]
        self.exact_state = [oracle.adafactor_state(w.shape, self.hyper.beta1) for w in weights]
        made = [state_of(w.shape, self.hyper.beta1, kept) for w in weights]
        self.state: dict[str, Any] = {key: [of[key] for of in made] for key in made[0]}
        if self.hyper.beta1 is None:
            self.state["moments"] = None

    def step(self, grads: list[np.ndarray], decay: float = 0.0, scale: float = 1.0, **options: Any) -> None:
        self.t += 1
        before = [g.copy() for g in grads]
        given = self.hyper._asdict() | self.state | {"weight_decay": decay, "inv_scale": 1 / scale}
        assert ops.adafactor_step(self.weights, grads, step=self.t, **given, **options) is None
        centralized = options.get("centralize", False)
        for i, (w, g) in enumerate(zip(self.exact, grads, strict=True)):
            u = oracle.ready_gradient(w, g.astype(np.float64), 1 / scale, centralized=centralized)
            self.exact[i], self.exact_state[i] = oracle.adafactor_step(
                w, u, self.exact_state[i], self.t, decay, self.hyper
            )
            assert_same_bits(g, before[i])

    def check(self, weights: Any = None, **close: float) -> None:
        for i, (got, exact) in enumerate(zip(weights or self.weights, self.exact, strict=True)):
            np.testing.assert_allclose(got.astype(np.float64), exact, **(CLOSE | close), err_msg=f"params[{i}]")
            names = ("rows", "columns") if got.ndim >= 2 else ("squares",)
            names += ("moments",) if self.hyper.beta1 is not None else ()
            for name, state in zip(names, self.exact_state[i], strict=True):
                found = self.state[name][i].astype(np.float64)
                np.testing.assert_allclose(found, state, **(CLOSE | close), err_msg=f"{name}[{i}]")


OPTIONS: dict[str, dict[str, Any]] = {
    "relative": {},
    "warmup": {"warmup_init": True},
    "plain": {"lr": 0.1, "scale_parameter": False},
    "moment": {"lr": 0.1, "beta1": 0.9, "clip_threshold": 0.5},
    "eps": {"lr": 0.1, "eps": (0.01, 2.0), "decay_rate": 0.5},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_twenty_steps(rng, name):
    training = Training([normal(rng, s) for s in SMALL], **OPTIONS[name])
    for _ in range(20):
        training.step([normal(rng, s) for s in SMALL], decay=0.1, scale=8.0)
    training.check()


@pytest.mark.parametrize("centralize", [False, True], ids=["plain", "centralized"])
@pytest.mark.parametrize("beta1", [None, 0.9], ids=["", "moment"])
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_large_tensors(rng, shape, beta1, centralize):
    """In one call with small ones."""
    shapes = [(3, 3), shape, (7,)]
    training = Training([normal(rng, s) for s in shapes], beta1=beta1)
    for _ in range(3):
        training.step([normal(rng, s) + np.float32(1) for s in shapes], decay=0.1, centralize=centralize)
    training.check()


def test_many_tensors(rng):
    shapes = [[(17, 3), (4,), (), (2, 3, 3)][i % 4] for i in range(500)]
    training = Training([normal(rng, s) for s in shapes])
    for _ in range(2):
        training.step([normal(rng, s) for s in shapes], centralize=True)
    training.check()


@pytest.mark.parametrize("of_gradient", DTYPES)
@pytest.mark.parametrize("of_weight", DTYPES)
def test_half_precision(rng, of_weight, of_gradient):
    check_masters(
        rng,
        [(5, 33), (70,), (), (70, 64)],
        (of_weight, of_gradient),
        lambda weights: Training(weights, lr=1e-3, beta1=0.9),
        steps=5,
    )


@pytest.mark.parametrize("kind", list(FLOATS.values())[1:], ids=str)
def test_half_weights_without_masters(rng, kind):
    check_weights_alone(rng, [(5, 33), (70,)], kind, lambda weights: Training(weights, lr=0.1), 1e-6)


def test_state_in_half_precision(rng):
    """What is stored is rounded after it was used: the first step is that of float32."""
    shapes = [(70,), (), (12, 5)]
    start = [normal(rng, s) for s in shapes]
    training = Training([w.copy() for w in start], kept=np.float16, lr=0.1, beta1=0.9)
    wide = Training([w.copy() for w in start], lr=0.1, beta1=0.9)
    for t in range(5):
        grads = [normal(rng, s) for s in shapes]
        training.step(grads)
        wide.step(grads)
        for a, b in zip(training.weights, wide.weights, strict=True):
            if t == 0:
                assert_same_bits(a, b)
    training.check(rtol=5e-3, atol=5e-4)


def test_half_squares_saturate():
    weight, squares = np.ones(3, np.float32), np.zeros(3, np.float16)
    for t, g in ((1, [1e3, 1.0, 1e-5]), (2, [1e3, 1.0, 1e-5])):
        before = weight.copy()
        ops.adafactor_step(weight, np.float32(g), None, None, squares, step=t, lr=0.1)
        assert np.isfinite(weight).all()
        assert (weight < before).all()
    np.testing.assert_array_equal(squares, np.float16([65504, 1, 0]))


def test_the_state_is_sublinear(rng):
    """What the op takes for a million weights: two thousand numbers."""
    weight = normal(rng, (1000, 1000))
    state = state_of(weight.shape)
    assert sum(s.size for s in state.values() if s is not None) == 2000
    exact = oracle.adafactor_step(
        weight.astype(np.float64),
        np.ones((1000, 1000)),
        oracle.adafactor_state(weight.shape, None),
        1,
        0.0,
        oracle.AdaFactor(),
    )
    ops.adafactor_step(weight, np.ones_like(weight), **state, step=1)
    np.testing.assert_allclose(weight, exact.w, **CLOSE)


@pytest.mark.parametrize("shape", [(6, 7), (4, 3, 3, 3), (100, 90), (50,)], ids=str)
def test_the_clipped_update_is_used(rng, shape):
    """After a jump of the gradient RMS(U) is far beyond the threshold, and the step's RMS is lr * threshold."""
    weight, state = np.zeros(shape, np.float32), state_of(shape)
    given = {"lr": 0.1, "scale_parameter": False, "clip_threshold": 0.5}
    ops.adafactor_step(weight, 1e-3 * normal(rng, shape), **state, step=99, **given)
    before = weight.copy()
    ops.adafactor_step(weight, normal(rng, shape), **state, step=100, **given)
    assert oracle.rms((weight - before).astype(np.float64)) == pytest.approx(0.05, rel=1e-5)


def test_a_gradient_of_rank_one_is_known_exactly(rng):
    """R C / mean(R) is u^2 then, and the first step is lr times the sign."""
    a, b = rng.uniform(0.5, 2, (40, 1)), rng.uniform(-2, 2, (1, 30))
    weight, grad = np.zeros((40, 30), np.float32), (a * b).astype(np.float32)
    ops.adafactor_step(weight, grad, **state_of(grad.shape), step=1, lr=0.25, scale_parameter=False)
    np.testing.assert_allclose(weight, -0.25 * np.sign(grad), rtol=1e-5)


@pytest.mark.parametrize("shape", [(6, 7), (100, 90), (50,), (4, 3, 3, 3)], ids=str)
def test_the_scale_of_the_gradient_does_not_matter(rng, shape):
    """By powers of two, to the bit; and unscaling is the same as small gradients."""
    weights, grad = [normal(rng, shape)] * 3, normal(rng, shape)
    weights = [w.copy() for w in weights]
    scales = ((1.0, 1.0), (2.0**20, 1.0), (2.0**-10, 2.0**15))
    for w, (large, inverse) in zip(weights, scales, strict=True):
        ops.adafactor_step(w, np.float32(large) * grad, **state_of(shape), step=1, inv_scale=inverse)
    assert_same_bits(weights[1], weights[0])
    assert_same_bits(weights[2], weights[0])


@pytest.mark.parametrize("beta1", [None, 0.9])
def test_no_rate_no_step(rng, beta1):
    weights = [normal(rng, s) for s in SMALL]
    before = [w.copy() for w in weights]
    training = Training(weights, lr=0.0, beta1=beta1)
    for _ in range(3):
        training.step([normal(rng, s) for s in SMALL], decay=0.5)
    for w, b in zip(weights, before, strict=True):
        assert_same_bits(w, b)


def test_decay_is_apart_from_the_gradient(rng):
    """With a gradient of 0 a weight shrinks by lr * decay, and without decay stays."""
    for shape in ((6, 7), (50,)):
        decayed, kept = np.ones(shape, np.float32), normal(rng, shape)
        before = kept.copy()
        for w, decay in ((decayed, 0.5), (kept, 0.0)):
            ops.adafactor_step(w, np.zeros_like(w), **state_of(shape), step=1, lr=0.25, weight_decay=decay)
        np.testing.assert_allclose(decayed, np.full(shape, 1 - 0.25 * 0.5), rtol=1e-6)
        assert_same_bits(kept, before)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("shape", [(6, 7), (50,), (4, 3, 3, 3), (100, 90)], ids=str)
def test_a_bad_gradient_reaches_its_tensor_alone(rng, shape, bad):
    grads = [normal(rng, shape), normal(rng, shape)]
    grads[0].flat[-1] = bad
    training = Training([normal(rng, shape), normal(rng, shape)])
    with np.errstate(invalid="ignore", divide="ignore"):
        training.step(grads)
    assert np.isnan(training.weights[0]).all()
    np.testing.assert_allclose(training.weights[1], training.exact[1], **CLOSE)


def test_same_bits_for_any_number_of_threads(rng, threads):
    shapes = SMALL + LARGE
    weights, grads = ([normal(rng, s) for s in shapes] for _ in range(2))

    def stepped(count: int) -> list[bytes]:
        threads(count)
        training = Training([w.copy() for w in weights], beta1=0.9)
        given = training.hyper._asdict() | training.state
        ops.adafactor_step(training.weights, grads, step=1, weight_decay=0.1, centralize=True, **given)
        state = [s for key in training.state for s in training.state[key] if s is not None]
        return [a.tobytes() for a in (*training.weights, *state)]

    one = stepped(1)
    assert all(stepped(count) == one for count in (2, 3, 16))


def test_same_bits_on_any_instruction_set(rng, isa):
    """The first one of this run is the one that the others are compared with."""
    shapes = SMALL + LARGE
    training = Training([normal(rng, s, list(FLOATS.values())[len(s) % 3]) for s in shapes], beta1=0.9)
    given = training.hyper._asdict() | training.state
    ops.adafactor_step(training.weights, [normal(rng, s) for s in shapes], step=1, centralize=True, **given)
    found = [w.tobytes() for w in training.weights]
    assert REFERENCE.setdefault("bytes", found) == found, isa


REFERENCE: dict[str, list[bytes]] = {}


def test_a_master_follows_a_weight_that_was_set(rng):
    weight = normal(rng, (5, 7), np.float16)
    master, wide = normal(rng, (5, 7)), weight.astype(np.float32)
    grad = normal(rng, (5, 7))
    ops.adafactor_step(
        [weight], [grad], **{k: [v] for k, v in state_of((5, 7), 0.9).items()}, step=1, beta1=0.9, masters=[master]
    )
    ops.adafactor_step(wide, grad, **state_of((5, 7), 0.9), step=1, beta1=0.9)
    assert_same_bits(master, wide)
    assert_same_bits(weight, wide.astype(np.float16))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"step": 0}, ValueError, r"step must be >= 1 and < 2\*\*63, got 0"),
    ({"step": 1.0}, TypeError, "step must be an integer, got float"),
    ({"eps": (1e-30,)}, ValueError, "eps must hold two numbers, got 1"),
    ({"eps": (0.0, 1e-3)}, ValueError, r"eps\[0\] must be > 0 and finite in float32, got 0"),
    ({"eps": (1e-30, -1.0)}, ValueError, r"eps\[1\] must be > 0 and finite in float32, got -1"),
    ({"clip_threshold": 0}, ValueError, "clip_threshold must be > 0 and finite in float32, got 0"),
    ({"decay_rate": 1.0}, ValueError, r"decay_rate must be in \(0, 1\), got 1"),
    ({"decay_rate": "x"}, TypeError, "decay_rate must be a number, got str"),
    ({"beta1": 0.0}, ValueError, r"beta1 must be None or in \(0, 1\), got 0.0"),
    ({"beta1": 0.9}, ValueError, "moments must be given exactly with beta1, got beta1 alone"),
    ({"moments": [np.ones(6, np.float32)]}, ValueError, "moments must be given exactly with beta1, got moments alone"),
    ({"lr": 0.1, "warmup_init": True}, ValueError, "warmup_init must come without lr, got lr 0.1"),
    ({"lr": -0.1}, ValueError, "lr must be finite and >= 0, got -0.1"),
    ({"lr": [0.1, 0.2]}, ValueError, "lr must hold one value, or one for each of the 1 parameters, got 2"),
    ({"weight_decay": np.nan}, ValueError, "weight_decay must be finite and >= 0, got nan"),
    ({"inv_scale": np.inf}, ValueError, "inv_scale must be finite, got inf"),
    ({"scale_parameter": 1}, TypeError, "scale_parameter must be a bool, got int"),
    ({"centralize": 1}, TypeError, "centralize must be a bool, or one for each tensor, got int"),
    ({"rows": None}, ValueError, "rows must hold as many arrays as params|rows.* must have 2 elements, got 0"),
    ({"rows": [np.ones(3, np.float32)]}, ValueError, r"rows\[0\] must have 2 elements, got 3"),
    ({"columns": [np.ones(2, np.float32)]}, ValueError, r"columns\[0\] must have 3 elements, got 2"),
    (
        {"masters": [np.ones(6, np.float32)]},
        ValueError,
        r"masters\[0\] must be empty beside a float32 parameter, got 6",
    ),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_what_is_refused(change, error, text):
    weight, grad = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    good: dict[str, Any] = {k: [v] for k, v in state_of((2, 3)).items()}
    good["moments"] = None
    with pytest.raises(error, match=f"^adafactor_step: ({text})"):
        ops.adafactor_step([weight], [grad], **(good | {"step": 1} | change))
    assert (weight == 1).all()
    ops.adafactor_step([weight], [grad], **good, step=1)
    assert (weight < 1).all()
