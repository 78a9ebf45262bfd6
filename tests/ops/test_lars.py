from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import _core, ops
from dtypes import DTYPES, SIZES, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(params: list[np.ndarray], grads: list[np.ndarray], **settings: float) -> None:
    lr, decay, scale = settings.get("lr", 1.0), settings.get("weight_decay", 0.0), settings.get("inv_scale", 1.0)
    before = [x.copy() for x in (*params, *grads)]
    ratio, decay_ratio = ops.lars_ratios(params, grads, **settings)
    rest = settings.get("coefficient", 1e-3), settings.get("epsilon", 1e-5), settings.get("use_clip", False)
    expected = [
        oracle.lars_ratio(w.astype(np.float64), scale * g.astype(np.float64), lr, decay, *rest)
        for w, g in zip(params, grads, strict=True)
    ]
    np.testing.assert_allclose(ratio, expected, rtol=2e-7)
    assert_same_bits(decay_ratio, ratio)
    for x, old in zip((*params, *grads), before, strict=True):
        assert_same_bits(x, old)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    check([normal(rng, size, dtype)], [normal(rng, size, dtype)], weight_decay=0.1)


@pytest.mark.parametrize("clip", [False, True])
def test_settings(rng, clip):
    shapes = [(), (3,), (0,), (2, 3, 4), (4097,)] * 10
    params, grads = ([normal(rng, s) for s in shapes] for _ in range(2))
    settings = {"lr": 0.003, "weight_decay": 0.02, "inv_scale": 2.0**-10, "coefficient": 0.02, "epsilon": 1e-3}
    check(params, grads, **settings, use_clip=clip)


def test_a_norm_of_zero_gives_one(rng):
    zero, some = np.zeros(33, np.float32), normal(rng, 33)
    ratio, decay_ratio = ops.lars_ratios([zero, some], [some, zero], weight_decay=0.5)
    assert ratio.tolist() == decay_ratio.tolist() == [1, 1]


def test_tensors_that_it_is_not_for_keep_their_gradient_and_lose_their_decay(rng):
    w, g = normal(rng, 33), normal(rng, 33)
    ratio, decay_ratio = ops.lars_ratios([w, w], [g, g], apply=[False, True])
    assert ratio[0] == 1
    assert decay_ratio[0] == 0
    assert ratio[1] == decay_ratio[1] != 1


def test_values_of_each_tensor(rng):
    params, grads = ([normal(rng, 7) for _ in range(3)] for _ in range(2))
    lrs, decays = [0.1, 0.2, 0.3], [0.0, 0.5, 1.0]
    ratio, _ = ops.lars_ratios(params, grads, lr=lrs, weight_decay=decays, use_clip=True)
    for i in range(3):
        one, _ = ops.lars_ratios(params[i], grads[i], lr=lrs[i], weight_decay=decays[i], use_clip=True)
        assert one[0] == ratio[i]


def test_a_step_with_it_is_larger_by_the_ratio_and_independent_of_the_gradients_scale(rng):
    w, g = normal(rng, 100), normal(rng, 100)
    steps = []
    for scale in (1.0, 1024.0):
        new = w.copy()
        ratio, _ = ops.lars_ratios(w, scale * g, epsilon=0.0)
        ops.sgd_step(new, scale * g, lr=1.0, ratio=ratio)
        steps.append(w - new)
    np.testing.assert_allclose(steps[0], steps[1], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(steps[0]) / np.linalg.norm(w), 1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lars: lr must be >= 0, got -1"),
        ({"weight_decay": -1.0}, "lars: weight_decay must be >= 0, got -1"),
        ({"coefficient": -1.0}, "lars: coefficient must be finite and >= 0, got -1"),
        ({"epsilon": np.nan}, "lars: epsilon must be finite and >= 0, got nan"),
        ({"inv_scale": np.inf}, "lars: scale must be finite, got inf"),
        ({"lr": [1.0, 2.0, 3.0]}, "lars: lr, weight_decay and apply must hold one value for each of the 2 weights"),
    ],
)
def test_values_that_are_refused(rng, settings, message):
    with pytest.raises(ValueError, match=message):
        ops.lars_ratios([normal(rng, 3)] * 2, [normal(rng, 3)] * 2, **settings)


def test_arguments_that_are_refused(rng):
    w, g = normal(rng, 3), normal(rng, 3)
    with pytest.raises(TypeError, match="lars: use_clip must be a bool, got int"):
        ops.lars_ratios(w, g, use_clip=1)
    with pytest.raises(TypeError, match="lars: apply must be a bool"):
        ops.lars_ratios(w, g, apply=[1])
    with pytest.raises(ValueError, match=r"lars: grads\[0\] must have 3 elements, got 4"):
        ops.lars_ratios(w, normal(rng, 4))
    settings = (1e-3, 1e-5, False, 1.0, [1.0], [0.0], [1])
    with pytest.raises(ValueError, match="lars: ratio must have 1 elements, got 3"):
        _core.lars(w, g, *settings, np.empty(3, np.float32), None)
    with pytest.raises(ValueError, match="lars: decay_ratio is written and must not overlap"):
        _core.lars(w[:2], g[:2], *settings, None, w[1:2])
