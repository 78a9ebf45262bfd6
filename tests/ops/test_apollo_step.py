"""APOLLO beside its oracle, element by element; the basis that it draws, the limit of a growing norm, the tensors that
AdamW steps in the same call, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import boost_ext
import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, assert_same_bits, normal
from masks import signs

from .half_precision import check_masters, check_weights_alone
from .producers import OnDevice
from .projected_training import LR, ProjectedTraining, check_others, check_skip

pytestmark = pytest.mark.usefixtures("isa")

MATRICES = [(1, 1), (5, 7), (9, 33), (33, 9), (4, 3, 3, 3), (16, 16), (17, 70), (70, 40), (1, 300), (300, 1)]
OTHERS = [(), (5,), (0,), (3, 4), (4097,), (2, 0)]
SEED = 7


def basis(shape: tuple[int, ...], rank: int, number: int, step: int, gap: int = 200, seed: int = SEED) -> np.ndarray:
    rows, columns = shape[0], int(np.prod(shape[1:]))
    return signs((rank, min(rows, columns)), seed, (step - 1) // gap, number)


def projected(shape: tuple[int, ...], rank: int) -> tuple[int, int]:
    rows, columns = shape[0], int(np.prod(shape[1:]))
    return (rank, columns) if rows <= columns else (rows, rank)


def roundings(u: np.ndarray, P: np.ndarray, tensor_wise: bool) -> np.ndarray:
    """How many times larger than a rounding the error of each element's scale is: R may be a small sum of large
    products, of which rounding keeps fewer digits. Through the norm, the others' errors come to each."""
    G = u.reshape(len(u), -1)
    tall = G.shape[0] > G.shape[1]
    axis = None if tensor_wise else int(tall)
    R = np.linalg.norm(G @ P.T if tall else P @ G, axis=axis, keepdims=True)
    size = np.linalg.norm(G, axis=axis, keepdims=True)
    each = np.linalg.norm(P) * size / np.maximum(R, 1e-30)
    return 1 + np.broadcast_to(each + each.max(), G.shape).reshape(u.shape)


class Training(ProjectedTraining):
    def __init__(self, weights: list[np.ndarray], others: int = 0, rank: int = 2, gap: int = 200, **hyper: Any) -> None:
        super().__init__(weights, others, rank, gap, oracle.Apollo(**hyper))
        self.norms = [np.zeros(1, np.float32) if f else None for f in self.is_matrix]
        for state, flag in zip(self.exact_state, self.is_matrix, strict=True):
            state.extend([0.0] if flag else [])

    def of_moment(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return projected(shape, self.rank)

    def called(self, grads: list[np.ndarray], **given: Any) -> Any:
        h = self.hyper
        own = {"scale_type": "tensor" if h.tensor_wise else "channel", "seed": SEED}
        own["norm_growth"] = None if np.isinf(h.limit) else h.limit
        return ops.apollo_step(self.weights, grads, *self.state(), **own | given)

    def state(self) -> list[list[Any]]:
        return [self.first, self.second, self.norms]

    def compared(self, i: int) -> list[Any]:
        return [*super().compared(i), *([self.norms[i]] if self.is_matrix[i] else [])]

    def by_oracle(self, i: int, u: np.ndarray, decay: float, options: dict[str, Any]) -> tuple[Any, np.ndarray]:
        w, number = self.exact[i], options.get("tensor_numbers", range(len(self.exact)))[i]
        P = basis(w.shape, self.rank, number, self.t, self.gap)
        made = oracle.apollo_step(w, u, P, self.exact_state[i], LR, self.t, decay, self.hyper)
        step = abs((1 - LR * decay) * w - made[0])
        return made, 3e-7 * step * roundings(u, P, self.hyper.tensor_wise)


OPTIONS: dict[str, dict[str, Any]] = {
    "channel": {},
    "rank 1": {"rank": 1},
    "rank 5": {"rank": 5},
    "rank beyond the shorter side": {"rank": 19},
    "mini": {"rank": 1, "tensor_wise": True, "factor": 128.0},
    "tensor": {"tensor_wise": True},
    "unlimited": {"limit": np.inf},
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


@pytest.mark.parametrize("shape", [(300, 301), (700, 200), (64, 3000), (3, 5000), (3000, 8), (64, 30, 3, 3)], ids=str)
@pytest.mark.parametrize("centralize", [False, True], ids=["plain", "centralized"])
def test_large_matrices(rng, shape, centralize):
    """In one call with small ones."""
    shapes = [(3, 3), shape, (7,)]
    training = Training([normal(rng, s) for s in shapes], 1, rank=3)
    for _ in range(2):
        training.step([normal(rng, s) + np.float32(1) for s in shapes], decay=0.1, centralize=centralize)
    training.check()


@pytest.mark.parametrize("size", [127, 128, 129, 255, 256, 257, 513])
def test_around_units_and_blocks(rng, size):
    shapes = [(size, 600), (600, size), (size, size), (2, size), (size, 2)]
    training = Training([normal(rng, s) for s in shapes], rank=9)
    for _ in range(2):
        training.step([normal(rng, s) for s in shapes])
    training.check()


@pytest.mark.parametrize("shape", [(530, 600), (600, 530)], ids=str)
def test_a_rank_of_more_than_a_block(rng, shape):
    training = Training([normal(rng, shape)], rank=520)
    for _ in range(2):
        training.step([normal(rng, shape)])
    training.check()


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
        rng, lambda weights, grads, *moments, **given: ops.apollo_step(weights, grads, *moments, None, **given)
    )


def drawn(shape: tuple[int, int], rank: int, **settings: Any) -> np.ndarray:
    """P, as the first moment of the gradients that have a single 1: of a column for each row."""
    rows, columns = shape
    assert rows <= columns
    moments = [np.zeros((rank, columns), np.float32) for _ in range(2)]
    grad = np.eye(rows, columns, dtype=np.float32)
    norm = np.zeros(1, np.float32)
    ops.apollo_step([np.zeros(shape, np.float32)], [grad], *([m] for m in moments), [norm], lr=0.0, **settings)
    return moments[0][:, :rows] / np.float32(0.1)


@pytest.mark.parametrize(("number", "step", "draw"), [(0, 1, 0), (0, 200, 0), (0, 201, 1), (5, 1000, 4)])
@pytest.mark.parametrize("rank", [1, 3, 64])
def test_the_basis_is_drawn_by_seed_number_and_refresh(rank, number, step, draw):
    got = drawn((40, 50), rank, step=step, seed=2**40 + 1, tensor_numbers=[number])
    np.testing.assert_array_equal(got.round(6), signs((rank, 40), 2**40 + 1, draw, number))


def test_the_projection_keeps_the_length_on_average(rng):
    """Of the columns of a matrix, by the bases of many tensors: E |P u|^2 = |u|^2."""
    count, rank = 400, 8
    grad = normal(rng, (64, 65))
    moments = [[np.zeros((rank, 65), np.float32) for _ in range(count)] for _ in range(2)]
    weights = [np.zeros((64, 65), np.float32) for _ in range(count)]
    ops.apollo_step(weights, [grad] * count, *moments, [np.zeros(1, np.float32) for _ in range(count)], lr=0.0, step=1)
    found = ((np.stack(moments[0]) / 0.1) ** 2).sum(axis=1)
    # The variance of the square of a Gaussian projection is 2 |u|^4 / rank; of this one it is not larger.
    deviation = np.sqrt(2 / rank / count)
    np.testing.assert_allclose(found.mean(axis=0), (grad**2).sum(axis=0), rtol=4 * deviation)
    assert (found.std(axis=0) <= 1.2 * np.sqrt(2 / rank) * (grad**2).sum(axis=0)).all()


def test_tensors_have_bases_of_their_own(rng):
    """And the same one for the same number."""
    grad = normal(rng, (6, 9))
    moments = [[np.zeros((2, 9), np.float32) for _ in range(3)] for _ in range(2)]
    weights = [np.zeros((6, 9), np.float32) for _ in range(3)]
    norms = [np.zeros(1, np.float32) for _ in range(3)]
    ops.apollo_step(weights, [grad] * 3, *moments, norms, lr=0.1, step=1, tensor_numbers=[4, 5, 4])
    assert_same_bits(moments[0][0], moments[0][2])
    assert_same_bits(weights[0], weights[2])
    assert (moments[0][0] != moments[0][1]).any()


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (300, 400)], ids=str)
def test_the_norm_grows_by_its_limit(rng, shape):
    """Where the gradient stops to change its sign, Adam's step would grow at once."""
    weight, norm = np.zeros(shape, np.float32), np.zeros(1, np.float32)
    state = [np.zeros(projected(shape, 2), np.float32) for _ in range(2)]
    grad, lengths = normal(rng, shape), []
    for t, sign in enumerate((1, -1, 1, 1, 1, 1), 1):
        before = weight.copy()
        given = {"lr": 0.5, "step": t, "norm_growth": 1.25}
        ops.apollo_step([weight], [np.float32(sign) * grad], *([s] for s in state), [norm], **given)
        lengths.append(np.linalg.norm(((before - weight) / 0.5).astype(np.float64)))
        assert float(norm[0]) == pytest.approx(lengths[-1], rel=1e-5)
    assert (np.divide(lengths[1:], lengths[:-1]) <= 1.25 * (1 + 1e-5)).all()
    assert lengths[2] == pytest.approx(1.25 * lengths[1], rel=1e-5)


def test_a_step_after_zeros_is_not_limited(rng):
    training = Training([normal(rng, (6, 9)), normal(rng, (9, 6))])
    training.step([np.zeros((6, 9), np.float32), np.zeros((9, 6), np.float32)], decay=0.5)
    training.check()
    assert [n.item() for n in training.norms] == [0, 0]
    training.step([normal(rng, (6, 9)), normal(rng, (9, 6))])
    training.check()
    assert all(n.item() > 1 for n in training.norms)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6)], ids=str)
def test_a_channel_without_a_gradient_stays(rng, shape):
    """Its moments are not 0, as those of an embedding that a batch does not look up."""
    training = Training([normal(rng, shape)], rank=2)
    training.step([normal(rng, shape)])
    before, grad = training.weights[0].copy(), normal(rng, shape)
    at = np.s_[:, 3] if shape[0] < shape[1] else np.s_[3]
    grad[at] = 0
    training.step([grad])
    training.check()
    assert_same_bits(training.weights[0][at], before[at])


def test_tiny_and_large_gradients(rng):
    """Steps by powers of two that float32 squares to 0 and to inf in other places."""
    for exponent in (-50, 50):
        training = Training([normal(rng, (6, 90)), normal(rng, (90, 6))], limit=np.inf, eps=1e-30)
        for _ in range(2):
            training.step([np.float32(2.0**exponent) * normal(rng, w.shape) for w in training.weights])
        training.check()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("shape", [(6, 7), (7, 6), (4, 3, 3, 3), (200, 700)], ids=str)
def test_a_bad_gradient_reaches_its_channel_alone(rng, shape, bad):
    grads = [normal(rng, shape), normal(rng, shape)]
    grads[0].flat[-1] = bad
    training, other = (Training([np.ones(shape, np.float32) for _ in range(2)]) for _ in range(2))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        training.step(grads)
    other.step([np.where(np.isfinite(g), g, 0).astype(np.float32) for g in grads])
    matrix = training.weights[0].reshape(shape[0], -1)
    wide = matrix.shape[0] <= matrix.shape[1]
    reached = np.isnan(matrix)
    assert reached.all(axis=int(not wide))[-1]
    assert not reached[..., :-1].any() if wide else not reached[:-1].any()
    assert np.isnan(training.norms[0]).all()
    for a, b in ((training.weights[1], other.weights[1]), (training.norms[1], other.norms[1])):
        assert_same_bits(a, b)


def test_a_bad_gradient_reaches_the_whole_tensor_of_mini(rng):
    grad = normal(rng, (6, 9))
    grad[2, 3] = np.nan
    training = Training([normal(rng, (6, 9))], rank=1, tensor_wise=True)
    training.step([grad])
    assert np.isnan(training.weights[0]).all()


@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_skip(rng, flag):
    check_skip(rng, lambda weights: Training(weights, 1), flag)


def test_a_master_follows_a_weight_that_was_set(rng):
    weight = normal(rng, (5, 7), np.float16)
    master, wide, grad = normal(rng, (5, 7)), weight.astype(np.float32), normal(rng, (5, 7))
    for w, masters in ((weight, [master]), (wide, None)):
        state = ([np.zeros((2, 7), np.float32)] for _ in range(2))
        ops.apollo_step([w], [grad], *state, [np.zeros(1, np.float32)], lr=0.1, step=1, masters=masters)
    assert_same_bits(master, wide)
    assert_same_bits(weight, wide.astype(np.float16))


def test_same_bits_for_any_number_of_threads(rng, threads):
    shapes = [*MATRICES, (300, 301), (1100, 120), (2, 100_000), *OTHERS]
    weights, grads = ([normal(rng, s) for s in shapes] for _ in range(2))

    def stepped(count: int) -> list[bytes]:
        threads(count)
        training = Training([w.copy() for w in weights], len(OTHERS), rank=7)
        for t in (1, 2):
            state = training.first, training.second, training.norms
            ops.apollo_step(training.weights, grads, *state, lr=0.1, step=t, centralize=True)
        return [a.tobytes() for a in (*training.weights, *training.first, *training.second, *training.norms[:11])]

    one = stepped(1)
    assert all(stepped(count) == one for count in (2, 3))


def test_same_bits_on_any_instruction_set(rng, isa):
    """The first one of this run is the one that the others are compared with."""
    shapes = [*MATRICES, (60, 301), (700, 30)]
    training = Training([normal(rng, s, list(FLOATS.values())[len(s) % 3]) for s in shapes], rank=5)
    grads = [normal(rng, s) for s in shapes]
    state = training.first, training.second, training.norms
    ops.apollo_step(training.weights, grads, *state, lr=0.1, step=1, centralize=True)
    found = [w.tobytes() for w in (*training.weights, *training.first)]
    assert REFERENCE.setdefault("bytes", found) == found, isa


REFERENCE: dict[str, list[bytes]] = {}


def test_the_state_is_an_eighth_of_adams(rng):
    """Of a rank of an eighth of the shorter side, and one number; and 1/512 of Mini's."""
    for shape, rank, share in (((512, 2048), 64, 8), ((512, 2048), 1, 512)):
        training = Training([np.zeros(shape, np.float32)], rank=rank)
        training.step([normal(rng, shape)])
        elements = sum(x.size for x in (*training.first, *training.second, *training.norms))
        assert elements == 2 * 512 * 2048 // share + 1


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"step": 0}, ValueError, r"step must be >= 1 and < 2\*\*63, got 0"),
    ({"step": 1.0}, TypeError, "step must be an integer, got float"),
    ({"step": 2**62, "update_proj_gap": 1}, ValueError, r"step must be at most 2\*\*32 times update_proj_gap, got 46"),
    ({"scale_type": "row"}, ValueError, "scale_type must be one of channel, tensor, got 'row'"),
    ({"scale_type": None}, TypeError, "scale_type must be a string, got NoneType"),
    ({"scale": -1.0}, ValueError, "scale must be finite and >= 0, got -1"),
    ({"scale": np.nan}, ValueError, "scale must be finite and >= 0, got nan"),
    ({"norm_growth": 0.5}, ValueError, "norm_growth must be >= 1, or None, got 0.5"),
    ({"norm_growth": np.inf}, ValueError, "norm_growth must be finite and >= 1, got inf"),
    ({"update_proj_gap": 0}, ValueError, r"update_proj_gap must be >= 1 and < 2\*\*53, got 0"),
    ({"update_proj_gap": 1.5}, TypeError, "update_proj_gap must be an integer, got float"),
    ({"seed": -1}, ValueError, r"seed must be >= 0 and < 2\*\*63, got -1"),
    ({"tensor_numbers": [1]}, ValueError, "tensor_numbers must hold one for each of the 2 parameters, got 1"),
    ({"tensor_numbers": [0, 2**32]}, ValueError, r"tensor_numbers must be >= 0 and < 2\*\*32, got 4294967296"),
    ({"tensor_numbers": 3}, TypeError, "tensor_numbers must be a list or tuple, got int"),
    ({"beta1": 1.0}, ValueError, r"beta1 must be in \[0, 1\), got 1"),
    ({"eps": 0.0}, ValueError, "eps must be > 0 in float32, got 0"),
    ({"lr": -0.1}, ValueError, "lr must be finite and >= 0, got -0.1"),
    ({"lr": [0.1] * 3}, ValueError, "lr must hold one value, or one for each of the 2 parameters, got 3"),
    ({"weight_decay": np.nan}, ValueError, "weight_decay must be finite and >= 0, got nan"),
    ({"inv_scale": np.inf}, ValueError, "inv_scale must be finite, got inf"),
    ({"ratio": np.nan}, ValueError, "ratio must be finite, got nan"),
    ({"inv_scale": 1e30, "ratio": 1e30}, ValueError, r"inv_scale \* ratio must be finite in float32, got 1e\+60"),
    ({"centralize": 1}, TypeError, "centralize must be a bool, or one for each tensor, got int"),
    ({"masters": [np.ones(6, np.float32), None]}, ValueError, r"masters\[0\] must be empty beside a float32"),
    ({"skip": np.ones(2, np.float32)}, ValueError, "skip must have 1 element"),
]
ONE, SIX, FOUR = (np.zeros(n, np.float32) for n in (1, 6, 4))
BAD_STATE: list[tuple[int, Any, type[Exception], str]] = [
    (
        2,
        [ONE, ONE.copy()],
        ValueError,
        r"norms\[1\] must be none for a tensor that is empty or has fewer than two axes",
    ),
    (2, [np.zeros(2, np.float32), None], ValueError, r"norms\[0\] must have 1 element"),
    (2, [ONE], ValueError, "norms must hold as many arrays as params"),
    (2, [], ValueError, "norms must hold one array, or None, for each tensor, got 0"),
    (2, [ONE.astype(np.float16), None], TypeError, r"norms\[0\] must be float32, got float16"),
    (2, None, ValueError, r"moments1\[0\] must have 6 elements, got 3"),
    (0, [np.zeros(4, np.float32), FOUR], ValueError, r"moments1\[0\] must have a multiple of the longer side .* 3, as"),
    (0, [np.zeros(0, np.float32), FOUR], ValueError, r"moments1\[0\] must have a multiple .*, got 0"),
    (0, [np.zeros(3, np.float32), SIX], ValueError, r"moments1\[1\] must have 4 elements, got 6"),
    (1, [SIX, FOUR], ValueError, r"moments2\[0\] must have 3 elements, got 6"),
]


def untouched() -> list[list[np.ndarray]]:
    return [[np.ones((2, 3), np.float32), np.ones(4, np.float32)] for _ in range(2)]


def good_state() -> list[list[Any]]:
    return [*([np.zeros(3, np.float32), np.zeros(4, np.float32)] for _ in range(2)), [np.zeros(1, np.float32), None]]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_what_is_refused(change, error, text):
    params, grads = untouched()
    good: dict[str, Any] = {"lr": 0.1, "step": 1}
    state = good_state()
    with pytest.raises(error, match=f"^apollo_step: ({text})"):
        ops.apollo_step(params, grads, *state, **(good | change))
    assert all((p == 1).all() for p in params)
    assert all((s == 0).all() for states in state for s in states if s is not None)
    ops.apollo_step(params, grads, *state, **good)
    assert all((p < 1).any() for p in params)


@pytest.mark.parametrize(("place", "change", "error", "text"), BAD_STATE)
def test_state_that_is_refused(place, change, error, text):
    params, grads = untouched()
    state = good_state()
    state[place] = change
    with pytest.raises(error, match=f"^apollo_step: ({text})"):
        ops.apollo_step(params, grads, *state, lr=0.1, step=1)
    assert all((p == 1).all() for p in params)


def test_overlaps_are_refused():
    params, grads = untouched()
    first, second, norms = good_state()
    with pytest.raises(ValueError, match=r"^apollo_step: .* must not overlap other arguments"):
        ops.apollo_step(params, grads, first, [second[0], first[1]], norms, lr=0.1, step=1)
    with pytest.raises(ValueError, match=r"^apollo_step: .* must not overlap other arguments"):
        ops.apollo_step(params, grads, first, second, [first[0][:1], None], lr=0.1, step=1)


@pytest.mark.skipif(boost_ext.build_info()["cuda"] is not None, reason="the object has no memory on a device")
def test_arrays_on_a_gpu_are_refused():
    params, grads = untouched()
    state = good_state()
    with pytest.raises(ValueError, match=r"^apollo_step: all arguments must live on one device, got CPU and CUDA$"):
        ops.apollo_step(params, [grads[0], OnDevice(2)], *state, lr=0.1, step=1)
    with pytest.raises(RuntimeError, match=r"^apollo_step: got CUDA arrays, but this build has no CUDA kernels"):
        ops.apollo_step([OnDevice(2)], [OnDevice(2)], *([OnDevice(2)] for _ in range(3)), lr=0.1, step=1)
