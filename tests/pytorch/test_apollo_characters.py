"""The network of benchmarks.apollo_characters, and what its table says of it."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from benchmarks import apollo_characters  # noqa: E402
from benchmarks.apollo_characters import (  # noqa: E402
    BESIDE,
    CHARACTERS,
    CONTEXT,
    TUNE,
    USUAL,
    Network,
    cost,
    matrices,
    parts,
    run,
)


def test_no_character_sees_later_ones() -> None:
    torch.manual_seed(0)
    network, x = Network(), torch.randint(0, len(CHARACTERS), (2, CONTEXT))
    other = torch.cat([x[:, :20], (x[:, 20:] + 1) % len(CHARACTERS)], dim=1)
    here, there = network(x), network(other)
    torch.testing.assert_close(here[:, :20], there[:, :20])
    assert (here[:, 20] - there[:, 20]).abs().max() > 1e-3


def test_the_state_is_counted() -> None:
    sizes = {rule: bytes_of for rule, _, *bytes_of in cost(1)}
    every, projected = (8 * sum(p.numel() for p in of) for of in (Network().parameters(), matrices(Network())))
    assert every / 8 > 1e6
    assert sizes[BESIDE] == [every, projected]
    limits = 4 * len(matrices(Network()))  # a norm each
    assert sizes["Apollo"] == [every - projected + projected // 8 + limits, projected // 8 + limits]


def test_a_training_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    some = tuple(part[:4000] for part in parts())
    monkeypatch.setattr(apollo_characters, "parts", lambda: some)
    before, after = (run("Apollo", steps, USUAL, 0, TUNE) for steps in (1, 10))
    assert after < before - 0.3
