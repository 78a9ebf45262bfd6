"""optim.GaLore: which parameters are projected, to which size, and a resumed training. Its steps are compared with the
oracle by the tests of all optimizers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.ms.optim.cases import check_resumed, parameters
from tests.ms.optim.test_apollo import SHAPES

from boost_ext import optim


def test_the_default_rank_leaves_an_eighth_of_the_state() -> None:
    """The basis included, and there is no larger rank with which it does."""
    optimizer = optim.GaLore(parameters({**SHAPES, "large.weight": (512, 2048)}), adamw=("head",))
    assert optimizer.ranks == (6, 1, 1, 0, 0, 0, 56)
    state = {p.name: p for p in (*optimizer.moments, *optimizer.squares, *optimizer.projections)}
    assert [p.name for p in optimizer.projections] == [
        f"projection.{name}" for name in ("wide.weight", "tall.weight", "conv.weight", "large.weight")
    ]
    assert [p.shape for p in optimizer.projections] == [(64, 6), (17, 1), (16, 1), (512, 56)]
    for rank, p in zip(optimizer.ranks, optimizer.parameters, strict=True):
        elements = sum(s.size for name, s in state.items() if name.endswith(p.name))
        if not rank:
            assert elements == 2 * p.size
        else:
            assert elements <= 2 * p.size / 8 < elements * (rank + 1) / rank


@pytest.mark.parametrize("settings", [{}, {"update_proj_gap": 3, "rank": 4}])
def test_five_and_five_steps_are_the_bits_of_ten(mode: int, settings: dict[str, Any], tmp_path: Path) -> None:
    check_resumed(lambda params: optim.GaLore(params, 0.01, 0.1, **settings), SHAPES, tmp_path)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rank": 0}, ValueError, "rank must be in [1, 2**31), got 0"),
    ({"update_proj_gap": 0}, ValueError, "update_proj_gap must be in [1, 2**31), got 0"),
    ({"seed": True}, TypeError, "seed must be an int, got bool"),
    ({"scale": -1.0}, ValueError, "scale must be finite and >= 0, got -1.0"),
    ({"adamw": ("tail",)}, ValueError, "adamw must hold parts of the parameters' names, got 'tail'"),
    ({"beta1": 1.0}, ValueError, "beta1 must be in [0, 1), got 1.0"),
    ({"eps": 0.0}, ValueError, "eps must be finite and > 0, got 0.0"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_what_is_refused(change: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)) as found:
        optim.GaLore(parameters(SHAPES), **change)
    assert "GaLore" in str(found.value)
