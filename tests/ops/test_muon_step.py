"""Muon beside its oracle, element by element; the tensors that AdamW steps in the same call, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, assert_same_bits, normal

from .half_precision import check_masters, check_weights_alone

pytestmark = pytest.mark.usefixtures("isa")

MATRICES = [(1, 1), (5, 7), (2, 0), (0, 3), (33, 9), (4, 3, 3, 3), (6, 2, 5), (16, 16), (17, 70), (70, 40)]
OTHERS = [(), (5,), (0,), (3, 4), (4097,)]
LR = 0.1
# Five iterations multiply a rounding by 485 at most (test_orthogonalize.py), and a step has it lr s times.
CLOSE = {"rtol": 2e-5, "atol": 2e-4 * LR}


class Training:
    """Steps of a list of tensors beside those of the oracle; the last `others` by AdamW."""

    def __init__(self, weights: list[np.ndarray], others: int = 0, **hyper: Any) -> None:
        self.weights, self.hyper, self.t = weights, hyper, 0
        self.exact = [w.astype(np.float64) for w in weights]
        self.by_adamw = [i >= len(weights) - others for i in range(len(weights))]
        self.exact_state = [[np.zeros(w.shape)] * (2 if other else 1) for w, other in self.pairs()]
        self.first = [np.zeros(w.shape, np.float32) for w in weights]
        self.second = [np.zeros(w.shape, np.float32) if other else None for w, other in self.pairs()]

    def pairs(self) -> Any:
        """Each weight, and whether AdamW steps it."""
        return zip(self.weights, self.by_adamw, strict=True)

    def step(self, grads: list[np.ndarray], decay: float = 0.0, scale: float = 1.0, **options: Any) -> None:
        self.t += 1
        before = [g.copy() for g in grads]
        state = (self.first, self.second) if any(self.by_adamw) else (self.first,)
        given = {"lr": LR, "step": self.t, "weight_decay": decay, "inv_scale": 1 / scale, **self.hyper, **options}
        assert ops.muon_step(self.weights, grads, *state, **given) is None
        names = {"ns_steps": "steps", "momentum": "momentum", "nesterov": "nesterov"}
        hyper = {names[k]: v for k, v in self.hyper.items() if k in names}
        hyper["match_rms"] = self.hyper.get("adjust_lr_fn") == "match_rms_adamw"
        for i, (w, g) in enumerate(zip(self.exact, grads, strict=True)):
            ratio = options.get("ratio", 1.0)
            u = oracle.ready_gradient(w, g.astype(np.float64), 1 / scale, ratio, 0.0, options.get("centralize", False))
            if self.by_adamw[i]:
                made = oracle.adamw_step(w, u, *self.exact_state[i], LR, self.t, 0.9, 0.999, 1e-8, decay)
            else:
                made = oracle.muon_step(w, u, *self.exact_state[i], LR, decay, **hyper)
            self.exact[i], self.exact_state[i] = made
            assert_same_bits(g, before[i])

    def check(self, weights: Any = None, **close: float) -> None:
        for i, (got, exact) in enumerate(zip(weights or self.weights, self.exact, strict=True)):
            limits = CLOSE | {"atol": CLOSE["atol"] * self.t} | close
            np.testing.assert_allclose(got.astype(np.float64), exact, **limits, err_msg=f"params[{i}]")
            for state, found in zip(self.exact_state[i], (self.first[i], self.second[i]), strict=False):
                np.testing.assert_allclose(found, state, rtol=2e-5, atol=2e-6, err_msg=f"moments of {i}")


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"nesterov": False, "momentum": 0.5},
    "without": {"momentum": 0.0},
    "match_rms": {"adjust_lr_fn": "match_rms_adamw"},
    "steps": {"ns_steps": 2},
    "none": {"ns_steps": 0},
    "tf32": {"allow_tf32": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_three_steps(rng, name):
    shapes = MATRICES + OTHERS
    training = Training([normal(rng, s) for s in shapes], len(OTHERS), **OPTIONS[name])
    for _ in range(3):
        training.step([normal(rng, s) for s in shapes], decay=0.1, scale=8.0)
    training.check()


@pytest.mark.parametrize("shape", [(300, 301), (700, 200), (64, 3000), (3, 5000), (9000, 8), (64, 30, 3, 3)], ids=str)
@pytest.mark.parametrize("centralize", [False, True], ids=["plain", "centralized"])
def test_large_matrices(rng, shape, centralize):
    """In one call with small ones."""
    shapes = [(3, 3), shape, (7,)]
    training = Training([normal(rng, s) for s in shapes], 1)
    for _ in range(2):
        training.step([normal(rng, s) + np.float32(1) for s in shapes], decay=0.1, centralize=centralize)
    training.check(atol=1e-3)


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize("shape", [(70, 96), (40, 256), (64, 160)], ids=str)
def test_medium_precision(rng, shape):
    """The iteration is that of orthogonalize."""
    w, g = normal(rng, shape), normal(rng, shape)
    m, direction = np.zeros_like(w), np.zeros_like(w)
    before = w.copy()
    ops.orthogonalize(g, direction)
    ops.muon_step(w, g, m, lr=LR, step=1, momentum=0.0)
    np.testing.assert_allclose(w, before - LR * direction, rtol=1e-5, atol=1e-6)


def test_many_tensors(rng):
    """More than a launch of the CUDA kernels has."""
    shapes = [[(17, 3), (2, 3, 3), (8, 20)][i % 3] for i in range(400)] + [(4,)] * 100
    training = Training([normal(rng, s) for s in shapes], 100, ns_steps=1)
    training.step([normal(rng, s) for s in shapes], centralize=True)
    training.check()


@pytest.mark.parametrize("of_gradient", DTYPES)
@pytest.mark.parametrize("of_weight", DTYPES)
def test_half_precision(rng, of_weight, of_gradient):
    check_masters(
        rng, [(5, 33), (68, 66), (3, 2, 2), (70,), ()], (of_weight, of_gradient), lambda weights: Training(weights, 2)
    )


@pytest.mark.parametrize("kind", list(FLOATS.values())[1:], ids=str)
def test_half_weights_without_masters(rng, kind):
    check_weights_alone(rng, [(5, 33), (70, 40), (70,)], kind, lambda weights: Training(weights, 1), 1e-4)


def test_the_other_tensors_are_those_of_adamw(rng):
    """To the bit."""
    weights = [normal(rng, s) for s in ((3, 4), (5,))]
    alone = [w.copy() for w in weights]
    state = [[np.zeros(w.shape, np.float32) for w in weights] for _ in range(4)]
    for t in (1, 2):
        grads = [normal(rng, w.shape) for w in weights]
        given = {"step": t, "lr": [0.1, 0.2], "weight_decay": 0.1, "beta2": 0.95, "ratio": [0.5, 1.0]}
        ops.muon_step(weights, grads, *state[:2], **given, adamw_eps=1e-6, centralize=True)
        ops.adamw_step(alone, grads, *state[2:], **given, eps=1e-6, centralize=True)
    for a, b in zip(weights, alone, strict=True):
        assert_same_bits(a, b)


def test_a_step_has_the_norm_of_its_rate(rng):
    """sqrt(rows * columns) lr by the RMS of AdamW, 0.2: the singular values are near 1."""
    for shape in ((30, 40), (80, 20), (8, 3, 5)):
        weight, moment = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        ops.muon_step([weight], [normal(rng, shape)], [moment], lr=0.5, step=1, adjust_lr_fn="match_rms_adamw")
        assert oracle.rms(weight.astype(np.float64)) == pytest.approx(0.1, rel=0.2)


def test_the_size_of_the_gradient_does_not_matter(rng):
    """By powers of two, to the bit where nothing is added to the norm; and unscaling is the same."""
    grad, found = normal(rng, (12, 30)), []
    for large, inverse, ratio in ((1.0, 1.0, 1.0), (2.0**20, 1.0, 1.0), (1.0, 2.0**-10, 1.0), (1.0, 1.0, 4.0)):
        weight, moment = np.ones((12, 30), np.float32), np.zeros((12, 30), np.float32)
        settings = {"eps": 0.0, "inv_scale": inverse, "ratio": ratio}
        ops.muon_step([weight], [np.float32(large) * grad], [moment], lr=0.1, step=1, **settings)
        found.append(weight)
    for other in found[1:]:
        assert_same_bits(other, found[0])


def test_no_rate_no_step(rng):
    weights = [normal(rng, s) for s in MATRICES]
    before = [w.copy() for w in weights]
    Training(weights).step([normal(rng, s) for s in MATRICES], decay=0.5, lr=0.0)
    for w, b in zip(weights, before, strict=True):
        assert_same_bits(w, b)


def test_a_gradient_of_zeros_decays(rng):
    weight = normal(rng, (6, 7))
    exact = weight.astype(np.float64) * (1 - 0.25 * 0.5)
    ops.muon_step(
        [weight], [np.zeros((6, 7), np.float32)], [np.zeros((6, 7), np.float32)], lr=0.25, step=1, weight_decay=0.5
    )
    np.testing.assert_allclose(weight, exact, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("shape", [(6, 7), (4, 3, 3, 3), (70, 20)], ids=str)
def test_a_bad_gradient_reaches_its_tensor_alone(rng, shape, bad):
    grads = [normal(rng, shape), normal(rng, shape)]
    grads[0].flat[-1] = bad
    training = Training([normal(rng, shape), normal(rng, shape)])
    with np.errstate(invalid="ignore", divide="ignore"):
        training.step(grads)
    assert np.isnan(training.weights[0]).all()
    np.testing.assert_allclose(training.weights[1], training.exact[1], **CLOSE)


@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_skip(rng, flag):
    shapes = [(5, 7), (70, 64), (4,)]
    training, other = (Training([np.ones(s, np.float32) for s in shapes], 1) for _ in range(2))
    grads = [normal(rng, s) for s in shapes]
    training.step(grads, skip=np.array([flag], np.float32), centralize=[True, False, False])
    if not flag:
        other.step(grads, centralize=[True, False, False])
    for name in ("weights", "first", "second"):
        for a, b in zip(getattr(training, name), getattr(other, name), strict=True):
            if a is not None:
                assert_same_bits(a, b)


def test_a_master_follows_a_weight_that_was_set(rng):
    weight = normal(rng, (5, 7), np.float16)
    master, wide, grad = normal(rng, (5, 7)), weight.astype(np.float32), normal(rng, (5, 7))
    ops.muon_step([weight], [grad], [np.zeros((5, 7), np.float32)], lr=0.1, step=1, masters=[master])
    ops.muon_step([wide], [grad], [np.zeros((5, 7), np.float32)], lr=0.1, step=1)
    assert_same_bits(master, wide)
    assert_same_bits(weight, wide.astype(np.float16))


def test_same_bits_for_any_number_of_threads(rng, threads):
    shapes = [*MATRICES, (300, 301), *OTHERS]
    weights, grads = ([normal(rng, s) for s in shapes] for _ in range(2))

    def stepped(count: int) -> list[bytes]:
        threads(count)
        training = Training([w.copy() for w in weights], len(OTHERS))
        ops.muon_step(training.weights, grads, training.first, training.second, lr=0.1, step=1, centralize=True)
        return [a.tobytes() for a in (*training.weights, *training.first)]

    one = stepped(1)
    assert all(stepped(count) == one for count in (2, 3))


def test_same_bits_on_any_instruction_set(rng, isa):
    """The first one of this run is the one that the others are compared with."""
    shapes = [*MATRICES, (60, 301)]
    training = Training([normal(rng, s, list(FLOATS.values())[len(s) % 3]) for s in shapes])
    ops.muon_step(training.weights, [normal(rng, s) for s in shapes], training.first, lr=0.1, step=1, centralize=True)
    found = [w.tobytes() for w in training.weights]
    assert REFERENCE.setdefault("bytes", found) == found, isa


REFERENCE: dict[str, list[bytes]] = {}


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"step": 0}, ValueError, r"step must be >= 1 and < 2\*\*63, got 0"),
    ({"step": 1.0}, TypeError, "step must be an integer, got float"),
    ({"momentum": 1.0}, ValueError, r"momentum must be in \[0, 1\), got 1"),
    ({"nesterov": 1}, TypeError, "nesterov must be a bool, got int"),
    ({"ns_steps": -1}, ValueError, "ns_steps must be >= 0 and <= 100, got -1"),
    ({"ns_steps": 1.5}, TypeError, "ns_steps must be an integer, got float"),
    ({"allow_tf32": 1}, TypeError, "allow_tf32 must be a bool, got int"),
    ({"eps": -1.0}, ValueError, "eps must be finite and >= 0, got -1"),
    ({"adjust_lr_fn": "none"}, ValueError, "adjust_lr_fn must be one of original, match_rms_adamw, got 'none'"),
    ({"adjust_lr_fn": None}, TypeError, "adjust_lr_fn must be a string, got NoneType"),
    ({"beta1": 1.0}, ValueError, r"beta1 must be in \[0, 1\), got 1"),
    ({"adamw_eps": 0.0}, ValueError, "adamw_eps must be > 0 in float32, got 0"),
    ({"lr": -0.1}, ValueError, "lr must be finite and >= 0, got -0.1"),
    ({"lr": [0.1] * 3}, ValueError, "lr must hold one value, or one for each of the 2 parameters, got 3"),
    ({"weight_decay": np.nan}, ValueError, "weight_decay must be finite and >= 0, got nan"),
    ({"inv_scale": np.inf}, ValueError, "inv_scale must be finite, got inf"),
    ({"ratio": np.nan}, ValueError, "ratio must be finite, got nan"),
    ({"inv_scale": 1e30, "ratio": 1e30}, ValueError, r"inv_scale \* ratio must be finite in float32, got 1e\+60"),
    ({"centralize": 1}, TypeError, "centralize must be a bool, or one for each tensor, got int"),
    ({"moments2": None}, ValueError, r"moments2\[1\] must be given for a tensor of fewer than two axes"),
    ({"moments2": [None]}, ValueError, "moments2 must hold as many arrays as params"),
    ({"moments2": [np.ones(5, np.float32)] * 2}, ValueError, r"moments2\[0\] must have 6 elements, got 5"),
    ({"masters": [np.ones(6, np.float32), None]}, ValueError, r"masters\[0\] must be empty beside a float32"),
    ({"skip": np.ones(2, np.float32)}, ValueError, "skip must have 1 element"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_what_is_refused(change, error, text):
    params, grads = ([np.ones((2, 3), np.float32), np.ones(4, np.float32)] for _ in range(2))
    good: dict[str, Any] = {"lr": 0.1, "step": 1, "moments2": [None, np.zeros(4, np.float32)]}
    first = [np.zeros_like(p) for p in params]
    with pytest.raises(error, match=f"^muon_step: ({text})"):
        ops.muon_step(params, grads, first, **(good | change))
    assert all((p == 1).all() for p in params)
    ops.muon_step(params, grads, first, **good)
    assert all((p < 1).any() for p in params)


def test_overlaps_are_refused():
    params, grads = ([np.ones((2, 3), np.float32), np.ones(4, np.float32)] for _ in range(2))
    with pytest.raises(ValueError, match=r"^muon_step: .* must not overlap other arguments"):
        ops.muon_step(params, grads, [params[0], grads[1]], [None, np.zeros(4, np.float32)], lr=0.1, step=1)
