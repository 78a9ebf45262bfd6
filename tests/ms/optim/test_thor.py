"""thor beside its float64 oracle, on a network with every layer that it treats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from tests.ms.optim.thor_oracle import BLOCK, Oracle, Small, batch, tensors, weights_of

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell

DAMPINGS = [0.1, 0.1, 0.05, 0.05, 0.02, 0.02]
LAYERS = ("table.embedding_table", "conv.weight", "hidden.weight", "head.weight")


def made(net: nn.Cell, **changes: Any) -> optim.Thor:
    arguments: dict[str, Any] = {
        **{"learning_rate": Tensor(0.1), "damping": 0.1, "momentum": 0.9, "batch_size": 8},
        **{"frequency": 2, "block_size": BLOCK},
    }
    return optim.thor(net, **{**arguments, **changes})


def close(net: nn.Cell, expected: dict[str, np.ndarray], tolerance: float = 2e-4) -> None:
    """Within `tolerance` of an array's largest element: inverses make a gradient's rounding some ten times larger."""
    for name, w in weights_of(net).items():
        np.testing.assert_allclose(w, expected[name], rtol=0, atol=tolerance * abs(expected[name]).max(), err_msg=name)


def trained(cell: Any, oracle: Oracle | None, steps: range) -> None:
    for i in steps:
        arrays = batch(i)
        cell(*tensors(arrays))
        if oracle is not None:
            oracle.step(*arrays)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "every option": (
        {
            "learning_rate": Tensor([0.1, 0.09, 0.08, 0.07, 0.06], ms.float32),
            **{"damping": Tensor(DAMPINGS, ms.float32), "weight_decay": 0.01, "use_nesterov": True, "frequency": 3},
            **{"decay_filter": lambda p: "bias" not in p.name, "block_size": 128},
        },
        {
            **{"rate": [0.1, 0.09, 0.08, 0.07, 0.06], "damping": DAMPINGS, "weight_decay": 0.01, "nesterov": True},
            **{"frequency": 3, "decays": lambda name: "bias" not in name, "block": 128},
        },
    ),
    "clipped": ({"enable_clip_grad": True, "weight_decay": 0.1}, {"clip": True, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("compile", ["step", "network", "off"])
def test_steps(mode: int, compile: Any, case: str) -> None:
    ours, theirs = CASES[case]
    net = Small()
    oracle = Oracle(weights_of(net), **{"rate": 0.1, "damping": 0.1, **theirs})
    optimizer = made(net, **ours)
    trained(BoostTrainOneStepCell(net, optimizer, compile=compile), oracle, range(5))
    close(net, oracle.w)
    assert optimizer.layers == LAYERS
    for which, inverses in enumerate((optimizer.matrix_a_inv, optimizer.matrix_g_inv)):
        for name, inverse in zip(LAYERS, inverses, strict=True):
            exact = oracle.inverses[name][which]
            got = inverse.asnumpy()
            full = np.diag(got) if got.ndim == 1 else np.zeros_like(exact)
            for i, block in enumerate(got if got.ndim == 3 else ()):
                at = slice(i * len(block), min((i + 1) * len(block), len(full)))
                full[at, at] = block[: at.stop - at.start, : at.stop - at.start]
            np.testing.assert_allclose(full, exact, rtol=0, atol=2e-4 * abs(exact).max(), err_msg=name)
