"""What the tests of our optimizers beside PyTorch's share: parameters, gradients, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch


def parameters(shapes: Iterable[Any], dtype: Any = None) -> list[Any]:
    made = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(s, generator=made).to(dtype or torch.float32)) for s in shapes]


def gradients(step: int, *lists: list[Any], scale: float = 1.0) -> None:
    """Those of this step, the same for each of the lists."""
    for of in lists:
        made = torch.Generator().manual_seed(100 + step)
        for p in of:
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=made) * scale)


def goes_over(
    one: Any, two: Any, first: list[Any], second: list[Any], folder: Path, close: Callable[..., None], steps: int
) -> None:
    """The second optimizer goes on from a checkpoint of the first one as that one does."""
    for step in range(steps):
        gradients(step, first)
        one.step()
    torch.save(one.state_dict(), folder / "state.pt")
    two.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    with torch.no_grad():
        for p, q in zip(first, second, strict=True):
            q.copy_(p)
    for step in range(steps, 2 * steps):
        gradients(step, first, second)
        one.step()
        two.step()
        close(first, second)
