"""dropout: 25e6 activations; and the layer beside MindSpore's, forward, and forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from boost_ext import ops

from .data import uniform
from .frameworks import bfloat16, mindspore_or_none, torch_bfloat16, torch_or_none
from .harness import Case, Peer
from .peers import in_mode, settled

P = 0.1


def told(x: Any) -> Callable[[Any], Any]:
    """Of an answer, since everybody has a mask of his own: the share that is kept, and how far what is kept is off."""
    exact = x.astype(np.float64) / (1 - P)

    def tell(y: Any) -> Any:
        wide = y.astype(np.float64).reshape(x.shape)
        return np.array([np.mean(wide != 0), 1 + np.abs(wide - np.where(wide != 0, exact, 0)).max()])

    return tell


def right(x: Any) -> Any:
    kept = np.random.default_rng(1).random(x.shape) >= P
    return np.where(kept, x.astype(np.float64) / (1 - P), 0)


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    x = uniform(n, seed=1) + np.float32(2)  # nothing is 0 before
    yield _arrays(f"dropout fp32, {n:.1e}", x, 8 * n)
    narrow = bfloat16(x)
    if narrow is not None:
        yield _arrays(f"dropout bf16, {n:.1e}", narrow, 4 * n)
    if mindspore_or_none():
        for size in (10_000, 500_000):
            for backward in (False, True):
                yield from _layers(x[:size].reshape(-1, 100).copy(), backward)


def _arrays(name: str, x: Any, traffic: int) -> Case:
    out = np.empty_like(x)
    rng = np.random.default_rng(1)

    def numpy_dropout() -> Any:
        return np.where(rng.random(x.size, np.float32) < P, x.dtype.type(0), x * x.dtype.type(1 / (1 - P)))

    peers = [Peer("NumPy", numpy_dropout, goal=5)]
    if torch := torch_or_none():
        tensor = torch.from_numpy(x) if x.dtype == np.float32 else torch_bfloat16(x)
        peers.append(Peer("PyTorch", lambda: torch.nn.functional.dropout(tensor, P), goal=1))
    return Case(
        name,
        ours=lambda: ops.dropout(x, P, 7, out=out),
        reference=lambda: right(x),
        peers=tuple(peers),
        traffic=traffic,
        access="copy",
        bandwidth_goal=0.8,
        tolerance=2e-2,
        view=told(x),
    )


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
            ours=call(boost.Dropout(P)),
            reference=partial(right, expected),
            peers=(Peer(f"nn.Dropout {label}", call(ms.nn.Dropout(p=P)), 1, partial(in_mode, mode)),),
            tolerance=2e-2,
            view=told(expected),
            around=partial(in_mode, mode),
        )
