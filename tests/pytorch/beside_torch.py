"""What the tests of our optimizers beside PyTorch's share: parameters, gradients, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from boost_ext import torch as boost


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


def check_resumed(make: Any, shapes: Any, folder: Any) -> None:
    """Five steps, a checkpoint, and five steps have the bits of ten."""

    def steps(params: list[Any], optimizer: Any, which: range) -> None:
        for step in which:
            gradients(step, params)
            optimizer.step()

    whole, first = parameters(shapes), parameters(shapes)
    steps(whole, make(whole), range(10))
    optimizer = make(first)
    steps(first, optimizer, range(5))
    torch.save((first, optimizer.state_dict()), folder / "saved.pt")
    second, state = torch.load(folder / "saved.pt", weights_only=False)
    optimizer = make(second)
    optimizer.load_state_dict(state)
    steps(second, optimizer, range(5, 10))
    for a, b in zip(whole, second, strict=True):
        assert torch.equal(a, b)


def check_scaled(make: Any, shapes: Any) -> None:
    """GradScaler's scale is taken out, and a step that overflows is skipped."""
    ours, theirs = parameters(shapes), parameters(shapes)
    optimizer, reference = make(ours), make(theirs)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    for step, bad in enumerate([False, True, False]):
        gradients(step, ours, theirs)
        scale = scaler.get_scale()
        for p in ours:
            p.grad *= scale
        if bad:
            ours[0].grad[0, 0] = torch.inf
        else:
            reference.step()
        scaler.step(optimizer)
        scaler.update()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def check_beside_adamw(make: Any, shapes: Any, off: dict[str, Any], of_matrices: list[str]) -> None:
    """All but the first parameter are stepped by AdamW, to the bit and with PyTorch's state: the last one since its
    group has `off`, the others since they are vectors or too small. The first one has the state `of_matrices`."""
    ours, theirs = parameters(shapes), parameters(shapes)
    head, others = {"params": ours[-1:], **off}, {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1}
    optimizer = make([{"params": ours[:-1]}, head], eps=1e-6, **others)
    reference = boost.AdamW(theirs[1:], eps=1e-6, **others)
    for step in range(3):
        gradients(step, ours, theirs)
        optimizer.step()
        reference.step()
    for p, q in zip(ours[1:], theirs[1:], strict=True):
        assert torch.equal(p, q)
        assert torch.equal(optimizer.state[p]["exp_avg_sq"], reference.state[q]["exp_avg_sq"])
    assert not torch.equal(ours[0], theirs[0])
    assert [sorted(s) for s in optimizer.state_dict()["state"].values()] == [
        of_matrices,
        *[["exp_avg", "exp_avg_sq", "step"]] * (len(ours) - 1),
    ]


def check_checkpoint_of_adamw_is_refused(projected: Any, settings: dict[str, Any], of_matrices: str) -> None:
    """Its moments are those of other numbers."""
    params = parameters(((64, 80), (90, 16), (24, 3, 3, 3)))
    gradients(0, params)
    other = boost.AdamW(params)
    other.step()
    state = other.state_dict()
    state["param_groups"][0] |= settings
    text = f"^load_state_dict: state of parameter 0 must hold {of_matrices}, got exp_avg, exp_avg_sq, step$"
    with pytest.raises(ValueError, match=text):
        projected(params).load_state_dict(state)


def check_masters(make: Any, shapes: Any, dtype: Any) -> None:
    """Half weights with a master are those of float32, rounded."""
    ours = parameters(shapes, dtype)
    theirs = [torch.nn.Parameter(p.detach().float()) for p in ours]
    optimizer, reference = make(ours, master=True), make(theirs)
    for step in range(6):
        gradients(step, ours)
        for p, q in zip(ours, theirs, strict=True):
            q.grad = p.grad.float()
        optimizer.step()
        reference.step()
    for p, q in zip(ours, theirs, strict=True):
        master = optimizer.state[p]["master"]
        assert torch.equal(master, q)
        assert torch.equal(p.detach(), master.to(dtype))
