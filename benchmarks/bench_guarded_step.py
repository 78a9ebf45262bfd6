"""The whole guarded step: unscale, look for inf and nan, clip by the global norm, Adam.

Ours reads the gradients once for check and norm, and does the rest in the pass that updates; PyTorch's is GradScaler,
clip_grad_norm_ and fused Adam.
"""

from __future__ import annotations

from collections.abc import Iterator

from boost_ext.bench.cases import TENSORS, guarded_step
from boost_ext.bench.harness import Case


def cases(quick: bool) -> Iterator[Case]:
    large, many, count = (300_000, 200_000, 10) if quick else (25_000_000, 20_000_000, 500)
    yield guarded_step(large, TENSORS)
    yield guarded_step(many, count)
    yield guarded_step(18_000, TENSORS, tiny=True)
