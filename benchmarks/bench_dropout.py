"""dropout: 25e6 activations; and the layer beside MindSpore's, forward, and forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from boost_ext.bench.cases import SHARE, dropout, right, told
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import halves, mindspore_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import in_mode, settled


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    x = uniform(n, seed=1) + np.float32(2)  # nothing is 0 before
    yield dropout(x, f"dropout fp32, {n:.1e}")
    for kind, narrow in halves(x):
        yield dropout(narrow, f"dropout {kind}, {n:.1e}")
    if mindspore_or_none():
        for size in (10_000, 500_000):
            for backward in (False, True):
                yield from _layers(x[:size].reshape(-1, 100).copy(), backward)


def _layers(x: Any, backward: bool) -> Iterator[Case]:
    ms = mindspore_or_none()
    assert ms is not None
    from boost_ext import boost

    given = ms.Tensor(x)
    for mode, label in ((ms.PYNATIVE_MODE, "PyNative"), (ms.GRAPH_MODE, "graph")):

        def call(layer: Any) -> Callable[[], Any]:
            class Network(ms.nn.Cell):  # type: ignore[name-defined]
                def __init__(self) -> None:
                    super().__init__()
                    self.layer = layer

                def construct(self, x: Any) -> Any:
                    return self.layer(x * x)  # whose gradient is 2 x, dropped out

            network = Network().set_train()
            function = ms.grad(network) if backward else network
            return lambda: settled(function(given))

        expected = 2 * x if backward else x * x
        yield Case(
            f"Dropout {x.size:.0e}, {'forward and backward' if backward else 'forward'}, {label}",
            ours=call(boost.Dropout(SHARE)),
            reference=partial(right, expected),
            peers=(Peer(f"nn.Dropout {label}", call(ms.nn.Dropout(p=SHARE)), 1, partial(in_mode, mode)),),
            tolerance=2e-2,
            view=told(expected),
            around=partial(in_mode, mode),
        )
