"""optim.Apollo: which parameters are projected, to which size, the basis of a resumed training, and what it refuses.
Its steps are compared with the oracle by the tests of all optimizers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Parameter
from tests.ms.optim.cases import arrays, check_resumed, gradients, parameters

from boost_ext import optim

SHAPES = {
    "wide.weight": (64, 100),
    "tall.weight": (70, 17),
    "conv.weight": (16, 3, 3, 3),
    "narrow.weight": (7, 500),
    "bias": (64,),
    "head.weight": (10, 64),
}


def state(optimizer: optim.Apollo) -> dict[str, tuple[int, ...]]:
    return {p.name: tuple(p.shape) for p in (*optimizer.moments, *optimizer.squares, *optimizer.norms)}


def test_the_default_rank_is_an_eighth_of_the_shorter_side() -> None:
    optimizer = optim.Apollo(parameters(SHAPES), adamw=("head",))
    assert optimizer.ranks == (8, 2, 2, 0, 0, 0)
    found = state(optimizer)
    assert [found[f"exp_avg.{name}"] for name in SHAPES] == [(8, 100), (70, 2), (2, 27), (7, 500), (64,), (10, 64)]
    assert [found[f"exp_avg_sq.{name}"] for name in SHAPES] == [found[f"exp_avg.{name}"] for name in SHAPES]
    assert [p.name for p in optimizer.norms] == [f"update_norm.{name}" for name in list(SHAPES)[:3]]
    for name in list(SHAPES)[:3]:
        elements = sum(int(np.prod(shape)) for key, shape in found.items() if key.endswith(name))
        assert elements <= 2 * np.prod(SHAPES[name]) // 8 + 1


@pytest.mark.parametrize(("rank", "ranks"), [(1, (1, 1, 1, 1, 0, 1)), (16, (16, 16, 0, 0, 0, 0)), (64, (0,) * 6)])
def test_a_rank_needs_a_longer_side(rank: int, ranks: tuple[int, ...]) -> None:
    assert optim.Apollo(parameters(SHAPES), rank=rank).ranks == ranks


@pytest.mark.parametrize("settings", [{"update_proj_gap": 3}, {"rank": 1, "scale_type": "tensor", "scale": 128.0}])
def test_five_and_five_steps_are_the_bits_of_ten(mode: int, settings: dict[str, Any], tmp_path: Path) -> None:
    check_resumed(lambda params: optim.Apollo(params, 0.01, 0.1, **settings), SHAPES, tmp_path)


def test_the_basis_depends_on_seed_and_name_alone() -> None:
    """Not on the place among the parameters, which may be frozen one by one."""

    def stepped(params: list[Parameter], **settings: Any) -> np.ndarray:
        optimizer = optim.Apollo(params, 0.01, **settings)
        optimizer(tuple(grads[p.name] for p in params))
        return dict(zip((p.name for p in params), arrays(optimizer.moments), strict=True))["wide.weight"]

    names = list(SHAPES)
    grads = dict(zip(names, gradients(0, parameters(SHAPES)), strict=True))
    first, alone, turned, other = (
        stepped([p for p in parameters(SHAPES) if p.name in chosen][::order], **settings)
        for chosen, order, settings in ((names, 1, {}), (names[:1], 1, {}), (names, -1, {}), (names, 1, {"seed": 1}))
    )
    np.testing.assert_array_equal(first, alone)
    np.testing.assert_array_equal(first, turned)
    assert (first != other).all()


def test_a_step_is_as_long_as_adamws_with_a_scale_of_the_share() -> None:
    """By its root mean square, after a few steps; the paper's square root of shorter side over rank."""
    lengths = []
    for cls, settings in ((optim.Apollo, {"scale": 8.0, "norm_growth": None}), (optim.AdamW, {"weight_decay": 0.0})):
        params = parameters({"weight": (64, 256)})
        optimizer = cls(params, 1.0, **settings)
        for step in range(6):
            before = arrays(params)[0]
            optimizer(gradients(step, params))
        lengths.append(np.linalg.norm(arrays(params)[0] - before))
    assert 0.85 < lengths[0] / lengths[1] < 1.15


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rank": 0}, ValueError, "rank must be in [1, 2**31), got 0"),
    ({"rank": 2.0}, TypeError, "rank must be an int, got float"),
    ({"update_proj_gap": 0}, ValueError, "update_proj_gap must be in [1, 2**31), got 0"),
    ({"seed": -1}, ValueError, "seed must be in [0, 2**31), got -1"),
    ({"seed": True}, TypeError, "seed must be an int, got bool"),
    ({"scale_type": "row"}, ValueError, "scale_type must be one of channel, tensor, got 'row'"),
    ({"scale": -1.0}, ValueError, "scale must be finite and >= 0, got -1.0"),
    ({"norm_growth": 0.5}, ValueError, "norm_growth must be >= 1, or None, got 0.5"),
    ({"adamw": "head"}, TypeError, "adamw must be a sequence of strings, got 'head'"),
    ({"adamw": ("tail",)}, ValueError, "adamw must hold parts of the parameters' names, got 'tail'"),
    ({"beta1": 1.0}, ValueError, "beta1 must be in [0, 1), got 1.0"),
    ({"eps": 0.0}, ValueError, "eps must be finite and > 0, got 0.0"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_what_is_refused(change: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)) as found:
        optim.Apollo(parameters(SHAPES), **change)
    assert "Apollo" in str(found.value)
