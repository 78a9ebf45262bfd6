"""GaLore beside its oracle, element by element, by the basis that a call leaves; that basis beside numpy.linalg.svd;
the tensors that AdamW steps in the same call, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import boost_ext
import oracle
from boost_ext import _core, ops
from dtypes import DTYPES, FLOATS, assert_same_bits, normal
from masks import singular_basis
from remembered import remembered

from .half_precision import check_masters, check_weights_alone
from .producers import OnDevice
from .projected_training import LR, ProjectedTraining, check_others, check_skip

pytestmark = pytest.mark.usefixtures("isa")

MATRICES = [(1, 1), (5, 7), (9, 33), (33, 9), (4, 3, 3, 3), (16, 16), (17, 70), (70, 40), (1, 300), (300, 1)]
OTHERS = [(), (5,), (0,), (3, 4), (4097,), (2, 0)]
svd = remembered(np.linalg.svd)


def sides(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], int(np.prod(shape[1:]))


def state_of(shape: tuple[int, ...], rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The shapes of the basis and of a moment."""
    rows, columns = sides(shape)
    rank = min(rank, rows, columns)
    return (min(rows, columns), rank), (rank, columns) if rows <= columns else (rows, rank)


def captured(u: np.ndarray, P: np.ndarray) -> float:
    """The share of what the best basis of this rank keeps of |u|^2."""
    G = u.reshape(len(u), -1).astype(np.float64)
    kept = np.linalg.norm(G @ P if len(G) > G.shape[1] else P.T @ G) ** 2
    return float(kept / (svd(G, compute_uv=False)[: P.shape[1]] ** 2).sum())


def roundings(u: np.ndarray, P: np.ndarray, v: np.ndarray, t: int, hyper: oracle.Apollo) -> np.ndarray:
    """The error of each element of P A: R may be a small sum of large products, of which float32 keeps fewer digits.
    A divides by its size. Where R is nothing but rounding, A may be anything."""
    tall = len(u) ** 2 > u.size
    off = 1e-6 * np.linalg.norm(u.reshape(len(u), -1), axis=int(tall), keepdims=True)
    of_adam = np.minimum(4, off / (np.sqrt(v / (1 - hyper.betas[1] ** t)) + hyper.eps)) + 1e-6
    return (of_adam @ abs(P.T) if tall else abs(P) @ of_adam).reshape(u.shape)


class Training(ProjectedTraining):
    """By the bases in the state."""

    def __init__(self, weights: list[np.ndarray], others: int = 0, rank: int = 2, gap: int = 200, **hyper: Any) -> None:
        super().__init__(weights, others, rank, gap, oracle.Apollo(**({"factor": 0.25} | hyper)))
        flags = zip(weights, self.is_matrix, strict=True)
        self.bases = [np.zeros(state_of(w.shape, rank)[0], np.float32) if f else None for w, f in flags]

    def of_moment(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return state_of(shape, self.rank)[1]

    def called(self, grads: list[np.ndarray], **given: Any) -> Any:
        return ops.galore_step(self.weights, grads, *self.state(), **given)

    def state(self) -> list[list[Any]]:
        return [self.bases, self.first, self.second]

    def by_oracle(self, i: int, u: np.ndarray, decay: float, options: dict[str, Any]) -> tuple[Any, np.ndarray]:
        P, h = self.bases[i].astype(np.float64), self.hyper
        made = oracle.galore_step(self.exact[i], u, P, *self.exact_state[i], LR, self.t, decay, h)
        return made, LR * h.factor * roundings(u, P, made[1][1], self.t, h)


class MediumTraining(Training):
    """With factors rounded to bfloat16, where the CPU multiplies these. That of the second product is known but for
    its rounding."""

    def by_oracle(self, i: int, u: np.ndarray, decay: float, options: dict[str, Any]) -> tuple[Any, np.ndarray]:
        if not _core.has_narrow_products():
            return super().by_oracle(i, u, decay, options)
        (beta1, beta2), eps = self.hyper.betas, self.hyper.eps
        P, u = (a.astype(FLOATS["bfloat16"]).astype(np.float64) for a in (self.bases[i], u))
        made = oracle.galore_step(self.exact[i], u, P, *self.exact_state[i], LR, self.t, decay, self.hyper)
        m, v = made[1]
        A = abs(m) / (1 - beta1**self.t) / (np.sqrt(v / (1 - beta2**self.t)) + eps)
        off = A @ abs(P.T) if len(u) ** 2 > u.size else abs(P) @ A
        return made, LR * self.hyper.factor * (roundings(u, P, v, self.t, self.hyper) + 2.0**-8 * off.reshape(u.shape))


OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "rank 1": {"rank": 1},
    "rank 5": {"rank": 5},
    "the whole side": {"rank": 300},
    "scale": {"factor": 2.0},
    "adam": {"betas": (0.5, 0.9), "eps": 1e-3},
    "refreshed": {"gap": 2},
    "refreshed each time": {"gap": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_five_steps(rng, name):
    shapes = MATRICES + OTHERS
    training = Training([normal(rng, s) for s in shapes], len(OTHERS), **OPTIONS[name])
    for _ in range(5):
        training.step([normal(rng, s) for s in shapes], decay=0.1, scale=8.0)
    training.check()


@pytest.mark.parametrize("shape", [(300, 301), (700, 200), (64, 3000), (3, 5000), (9000, 8), (64, 30, 3, 3)], ids=str)
@pytest.mark.parametrize("centralize", [False, True], ids=["plain", "centralized"])
def test_large_matrices(rng, shape, centralize):
    """In one call with small ones."""
    shapes = [(3, 3), shape, (7,)]
    training = Training([normal(rng, s) for s in shapes], 1, rank=3)
    for _ in range(2):
        training.step([normal(rng, s) + np.float32(1) for s in shapes], decay=0.1, centralize=centralize)
    training.check()


@pytest.mark.parametrize("size", [127, 128, 129, 255, 257])
def test_around_units_and_blocks(rng, size):
    shapes = [(size, 300), (300, size), (size, size), (2, size), (size, 2)]
    training = Training([normal(rng, s) for s in shapes], rank=9)
    for _ in range(2):
        training.step([normal(rng, s) for s in shapes])
    training.check()


@pytest.mark.parametrize("kind", [Training, MediumTraining])
def test_more_directions_than_a_slab_of_products(rng, kind, request):
    if kind is MediumTraining:
        request.getfixturevalue("medium_precision")
    shapes = [(150, 300), (300, 150), (145, 160)]
    training = kind([normal(rng, s) for s in shapes], rank=140)
    for _ in range(2):
        training.step([normal(rng, s) for s in shapes])
    training.check()


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize("rank", [1, 7, 16])
def test_medium_precision(rng, rank):
    shapes = [*MATRICES, (129, 300), (300, 129), (64, 1100), (1100, 64)]
    training = MediumTraining([normal(rng, s) for s in shapes], rank=rank)
    for _ in range(3):
        training.step([normal(rng, s) for s in shapes], decay=0.1, scale=8.0)
    training.check()


def test_the_basis_is_found_in_float32(rng, request):
    grad = normal(rng, (60, 90))
    exact = basis_of(grad, 5)
    request.getfixturevalue("medium_precision")
    assert_same_bits(basis_of(grad, 5), exact)


@pytest.mark.parametrize("of_gradient", DTYPES)
@pytest.mark.parametrize("of_weight", DTYPES)
def test_half_precision(rng, of_weight, of_gradient):
    check_masters(
        rng,
        [(5, 33), (68, 66), (33, 5), (3, 2, 2), (70,), ()],
        (of_weight, of_gradient),
        lambda weights: Training(weights, 2),
    )


@pytest.mark.parametrize("kind", list(FLOATS.values())[1:], ids=str)
def test_half_weights_without_masters(rng, kind):
    check_weights_alone(rng, [(5, 33), (70, 40), (70,)], kind, lambda weights: Training(weights, 1), 1e-4)


def test_the_other_tensors_are_those_of_adamw(rng):
    """To the bit."""
    check_others(
        rng, lambda weights, grads, *moments, **given: ops.galore_step(weights, grads, None, *moments, **given)
    )


def basis_of(grad: np.ndarray, rank: int, **settings: Any) -> np.ndarray:
    """That a step makes."""
    of_basis, of_moment = state_of(grad.shape, rank)
    basis, weight = np.zeros(of_basis, np.float32), np.zeros(grad.shape, np.float32)
    moments = [[np.zeros(of_moment, np.float32)] for _ in range(2)]
    ops.galore_step([weight], [grad], [basis], *moments, **({"lr": 0.0, "step": 1} | settings))
    return basis


def with_spectrum(rng: np.random.Generator, shape: tuple[int, int], values: np.ndarray) -> np.ndarray:
    left, _, right = svd(rng.standard_normal(shape), full_matrices=False)
    return (left * values @ right).astype(np.float32)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (8, 3, 3, 3), (60, 80), (80, 60)], ids=str)
def test_the_basis_holds_the_singular_vectors(rng, shape):
    """And not only their span; the signs are those of the oracle."""
    rows, columns = sides(shape)
    grad = with_spectrum(rng, (rows, columns), 0.7 ** np.arange(min(rows, columns)))
    basis = basis_of(grad.reshape(shape), 4)
    np.testing.assert_allclose(basis, singular_basis(grad, 4), atol=2e-5)


@pytest.mark.parametrize("shape", [(512, 2048), (300, 200), (96, 1000), (256, 256)], ids=str)
@pytest.mark.parametrize("spectrum", ["white", "decaying", "steep"])
def test_the_basis_keeps_as_much_as_that_of_numpy(rng, shape, spectrum):
    side = min(shape)
    powers = {"decaying": np.arange(1, side + 1) ** -0.7, "steep": 0.5 ** np.arange(side)}
    grad = normal(rng, shape) if spectrum == "white" else with_spectrum(rng, shape, powers[spectrum])
    for rank in (1, side // 9):
        basis = basis_of(grad, rank)
        np.testing.assert_allclose(basis.T @ basis, np.eye(rank), atol=2e-6)
        assert captured(grad, basis) > (0.97 if spectrum == "white" else 0.999)


def test_equal_singular_values(rng):
    """Whatever the basis, it is one: of the plane that has the largest ones."""
    grad = with_spectrum(rng, (40, 50), np.array([1.0] * 3 + [1e-3] * 37))
    basis = basis_of(grad, 3).astype(np.float64)
    exact = singular_basis(grad.astype(np.float64), 3)
    np.testing.assert_allclose(basis @ basis.T, exact @ exact.T, atol=1e-5)


@pytest.mark.parametrize("exponent", [-60, -100, 60, 100])
def test_tiny_and_large_gradients(rng, exponent):
    grad = with_spectrum(rng, (20, 30), 0.5 ** np.arange(20))
    np.testing.assert_allclose(basis_of(np.float32(2.0**exponent) * grad, 3), basis_of(grad, 3), atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (6, 9), (9, 6), (200, 300)], ids=str)
@pytest.mark.parametrize("rank_of_gradient", [0, 1])
def test_a_gradient_of_less_rank_gives_a_whole_basis(rng, shape, rank_of_gradient):
    """It is orthonormal, and zeros move nothing."""
    grad = np.outer(normal(rng, shape[:1]), normal(rng, shape[1:])) * np.float32(rank_of_gradient)
    training = Training([np.ones(shape, np.float32)], rank=5)
    training.step([grad])
    training.check()
    basis = training.bases[0]
    np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=2e-6)
    assert (training.weights[0] != 1).all() if rank_of_gradient else (training.weights[0] == 1).all()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("shape", [(6, 7), (7, 6), (4, 3, 3, 3), (200, 700)], ids=str)
def test_a_bad_gradient_reaches_its_matrix_alone(rng, shape, bad):
    grads = [normal(rng, shape), normal(rng, shape)]
    training, other = (Training([np.ones(shape, np.float32) for _ in range(2)]) for _ in range(2))
    other.step(grads)
    grads[0].flat[-1] = bad
    weights, state = training.weights, (training.bases, training.first, training.second)
    ops.galore_step(weights, grads, *state, lr=LR, step=1)
    assert np.isnan(weights[0]).all()
    for a, b in zip((weights, *state), (other.weights, other.bases, other.first, other.second), strict=True):
        assert_same_bits(a[1], b[1])


def test_the_basis_is_made_every_gap(rng):
    weight, basis = np.zeros((6, 9), np.float32), np.zeros((6, 2), np.float32)
    moments = [[np.zeros((2, 9), np.float32)] for _ in range(2)]
    seen = []
    for t in range(1, 8):
        ops.galore_step([weight], [normal(rng, (6, 9))], [basis], *moments, lr=0.1, step=t, update_proj_gap=3)
        seen.append(basis.tobytes())
    assert [a != b for a, b in pairwise(seen)] == [False, False, True, False, False, True]


def test_the_start_is_drawn_by_seed_number_and_refresh(rng):
    """It shows where the iteration does not end: in the last digits of a basis."""
    grad = normal(rng, (100, 150))
    plain = basis_of(grad, 5)
    assert_same_bits(plain, basis_of(grad, 5, seed=0, tensor_numbers=[0]))
    for settings in ({"seed": 1}, {"tensor_numbers": [1]}, {"step": 201}):
        assert (basis_of(grad, 5, **settings) != plain).any()


@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_skip(rng, flag):
    check_skip(rng, lambda weights: Training(weights, 1), flag)


def test_same_bits_for_any_number_of_threads(rng, threads):
    shapes = [*MATRICES, (300, 301), (1100, 120), (2, 100_000), *OTHERS]
    weights, grads = ([normal(rng, s) for s in shapes] for _ in range(2))

    def stepped(count: int) -> list[bytes]:
        threads(count)
        training = Training([w.copy() for w in weights], len(OTHERS), rank=7)
        for t in (1, 2):
            state = training.bases, training.first, training.second
            ops.galore_step(training.weights, grads, *state, lr=0.1, step=t, centralize=True)
        return [a.tobytes() for a in (*training.weights, *training.first, *training.second)]

    one = stepped(1)
    assert all(stepped(count) == one for count in (2, 3, 7))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"step": 0}, ValueError, r"step must be >= 1 and < 2\*\*63, got 0"),
    ({"scale": -1.0}, ValueError, "scale must be finite and >= 0, got -1"),
    ({"update_proj_gap": 0}, ValueError, r"update_proj_gap must be >= 1 and < 2\*\*53, got 0"),
    ({"seed": -1}, ValueError, r"seed must be >= 0 and < 2\*\*63, got -1"),
    ({"tensor_numbers": [1]}, ValueError, "tensor_numbers must hold one for each of the 2 parameters, got 1"),
    ({"beta1": 1.0}, ValueError, r"beta1 must be in \[0, 1\), got 1"),
    ({"eps": 0.0}, ValueError, "eps must be > 0 in float32, got 0"),
    ({"lr": -0.1}, ValueError, "lr must be finite and >= 0, got -0.1"),
    ({"skip": np.ones(2, np.float32)}, ValueError, "skip must have 1 element"),
]
FOUR, SIX, EIGHT = (np.zeros(n, np.float32) for n in (4, 6, 8))
BAD_STATE: list[tuple[int, Any, type[Exception], str]] = [
    (0, [np.zeros(2, np.float32), FOUR], ValueError, r"projections\[1\] must be none for a tensor that is empty"),
    (0, [SIX, None], ValueError, r"projections\[0\] must have 1 to 2 vectors of the shorter side, 2, got 6 elements"),
    (0, [np.zeros(3, np.float32), None], ValueError, r"projections\[0\] must have 1 to 2 vectors .* got 3 elements"),
    (0, [FOUR.astype(np.float16), None], TypeError, r"projections\[0\] must be float32, got float16"),
    (0, [], ValueError, "projections must hold one array, or None, for each tensor, got 0"),
    (0, None, ValueError, r"moments1\[0\] must have 6 elements, got 3"),
    (1, [SIX, FOUR], ValueError, r"moments1\[0\] must have 3 elements, got 6"),
    (2, [SIX, FOUR], ValueError, r"moments2\[0\] must have 3 elements, got 6"),
    (2, [np.zeros(3, np.float32), EIGHT], ValueError, r"moments2\[1\] must have 4 elements, got 8"),
]


def untouched() -> list[list[np.ndarray]]:
    return [[np.ones((2, 3), np.float32), np.ones(4, np.float32)] for _ in range(2)]


def good_state() -> list[list[Any]]:
    return [[np.zeros(2, np.float32), None], *([np.zeros(3, np.float32), np.zeros(4, np.float32)] for _ in range(2))]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_what_is_refused(change, error, text):
    params, grads = untouched()
    good: dict[str, Any] = {"lr": 0.1, "step": 1}
    state = good_state()
    with pytest.raises(error, match=f"^galore_step: ({text})"):
        ops.galore_step(params, grads, *state, **(good | change))
    assert all((p == 1).all() for p in params)
    assert all((s == 0).all() for states in state for s in states if s is not None)
    ops.galore_step(params, grads, *state, **good)
    assert all((p < 1).any() for p in params)


@pytest.mark.parametrize(("place", "change", "error", "text"), BAD_STATE)
def test_state_that_is_refused(place, change, error, text):
    params, grads = untouched()
    state = good_state()
    state[place] = change
    with pytest.raises(error, match=f"^galore_step: ({text})"):
        ops.galore_step(params, grads, *state, lr=0.1, step=1)
    assert all((p == 1).all() for p in params)


def test_overlaps_are_refused():
    params, grads = untouched()
    _, first, second = good_state()
    with pytest.raises(ValueError, match=r"^galore_step: .* must not overlap other arguments"):
        ops.galore_step(params, grads, [first[0][:2], None], first, second, lr=0.1, step=1)


@pytest.mark.skipif(boost_ext.build_info()["cuda"] is not None, reason="the object has no memory on a device")
def test_arrays_on_a_gpu_are_refused():
    params, grads = untouched()
    with pytest.raises(ValueError, match=r"^galore_step: all arguments must live on one device, got CPU and CUDA$"):
        ops.galore_step(params, [grads[0], OnDevice(2)], *good_state(), lr=0.1, step=1)
