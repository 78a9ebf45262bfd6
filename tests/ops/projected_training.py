"""What the tests of apollo_step and galore_step share: a training beside the oracle, and what is left to AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import oracle
from boost_ext import ops
from dtypes import assert_same_bits, normal

LR = 0.1


class ProjectedTraining:
    """Steps of a list of tensors beside those of the oracle; the last `others` by AdamW."""

    def __init__(self, weights: list[np.ndarray], others: int, rank: int, gap: int, hyper: oracle.Apollo) -> None:
        self.weights, self.rank, self.gap, self.hyper, self.t = weights, rank, gap, hyper, 0
        self.exact = [w.astype(np.float64) for w in weights]
        self.error = [np.zeros(w.shape) for w in weights]
        self.is_matrix = [i < len(weights) - others for i in range(len(weights))]
        shapes = [self.of_moment(w.shape) if flag else w.shape for w, flag in zip(weights, self.is_matrix, strict=True)]
        self.first, self.second = ([np.zeros(s, np.float32) for s in shapes] for _ in range(2))
        self.exact_state: list[Any] = [[np.zeros(s), np.zeros(s)] for s in shapes]

    def of_moment(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Of a matrix, the shape of a moment."""
        raise NotImplementedError

    def called(self, grads: list[np.ndarray], **given: Any) -> Any:
        """The op."""
        raise NotImplementedError

    def state(self) -> list[list[Any]]:
        """Lists that a step writes, beside the weights."""
        raise NotImplementedError

    def compared(self, i: int) -> list[Any]:
        """The state of a tensor that the oracle has, too."""
        return [self.first[i], self.second[i]]

    def by_oracle(self, i: int, u: np.ndarray, decay: float, options: dict[str, Any]) -> tuple[Any, np.ndarray]:
        """The step of a matrix, as its weight and state, and the error that it may add."""
        raise NotImplementedError

    def step(self, grads: list[np.ndarray], decay: float = 0.0, scale: float = 1.0, **options: Any) -> None:
        self.t += 1
        h, before = self.hyper, [g.copy() for g in grads]
        given = {"scale": h.factor, "beta1": h.betas[0], "beta2": h.betas[1], "eps": h.eps, "update_proj_gap": self.gap}
        given |= {"lr": LR, "step": self.t, "weight_decay": decay, "inv_scale": 1 / scale, **options}
        assert self.called(grads, **given) is None
        for i, (w, g) in enumerate(zip(self.exact, grads, strict=True)):
            ratio = options.get("ratio", 1.0)
            u = oracle.ready_gradient(w, g.astype(np.float64), 1 / scale, ratio, 0.0, options.get("centralize", False))
            if self.is_matrix[i]:
                made, error = self.by_oracle(i, u, decay, options)
                self.error[i] = self.error[i] + error
            else:
                made = oracle.adamw_step(w, u, *self.exact_state[i], LR, self.t, *h.betas, h.eps, decay)
            self.exact[i], self.exact_state[i] = made
            assert_same_bits(g, before[i])

    def check(self, weights: Any = None) -> None:
        for i, (got, exact) in enumerate(zip(weights or self.weights, self.exact, strict=True)):
            bound = self.error[i] + 1e-6 * abs(exact) + 2e-6 * self.t
            off = abs(got.astype(np.float64) - exact)
            assert (off <= bound).all(), f"params[{i}] are off by {off.max()}, {(off / bound).max()} of the bound"
            for found, state in zip(self.compared(i), self.exact_state[i], strict=True):
                np.testing.assert_allclose(found, state, rtol=5e-5, atol=2e-5, err_msg=f"state of {i}")


def check_others(rng: np.random.Generator, step: Callable[..., Any]) -> None:
    """The tensors that are no matrices make AdamW's step, to the bit; `step` takes weights, gradients and moments."""
    weights = [normal(rng, s) for s in ((3, 4), (5,))]
    alone = [w.copy() for w in weights]
    state = [[np.zeros(w.shape, np.float32) for w in weights] for _ in range(4)]
    for t in (1, 2):
        grads = [normal(rng, w.shape) for w in weights]
        given = {"step": t, "lr": [0.1, 0.2], "weight_decay": 0.1, "beta2": 0.95, "ratio": [0.5, 1.0], "eps": 1e-6}
        step(weights, grads, *state[:2], **given, centralize=True)
        ops.adamw_step(alone, grads, *state[2:], **given, centralize=True)
    for a, b in zip(weights, alone, strict=True):
        assert_same_bits(a, b)


def check_skip(
    rng: np.random.Generator, made: Callable[[list[np.ndarray]], ProjectedTraining], flag: float, **given: Any
) -> None:
    """A step is whole with a flag of 0, and changes nothing with another one; `made`: one tensor is not a matrix."""
    shapes = [(5, 7), (70, 64), (4,)]
    training, other = (made([np.ones(s, np.float32) for s in shapes]) for _ in range(2))
    grads = [normal(rng, s) for s in shapes]
    given = {"lr": 0.1, "step": 1, "centralize": [True, False, False]} | given
    training.called(grads, **given, skip=np.array([flag], np.float32))
    if not flag:
        other.called(grads, **given)
    for ours, theirs in zip((training.weights, *training.state()), (other.weights, *other.state()), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            if a is not None:
                assert_same_bits(a, b)
