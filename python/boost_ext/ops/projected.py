"""What the steps of APOLLO and GaLore check and hand on alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from boost_ext import _core
from boost_ext.ops.arguments import flags, integer, number, numbers, with_gaps


def _within(op: str, arg: str, value: Any, least: int, bits: int) -> int:
    known = integer(op, arg, value)
    if not least <= known < 2**bits:
        raise ValueError(f"{op}: {arg} must be >= {least} and < 2**{bits}, got {known}")
    return known


def projected_step(
    op: str,
    hyper: Sequence[float],
    tensors: dict[str, Any],
    *,
    lr: Any,
    step: Any,
    update_proj_gap: Any,
    seed: Any,
    tensor_numbers: Any,
    of_adam: dict[str, Any],
    weight_decay: Any,
    inv_scale: Any,
    ratio: Any,
    centralize: Any,
    masters: Any,
    skip: Any,
) -> None:
    """Calls the native op.

    Args:
        hyper: what it has of its own before the gap.
        tensors: params, grads, what matrices alone have under its name, moments1, moments2.
    """
    t = _within(op, "step", step, 1, 63)
    own_hyper = [*hyper, float(_within(op, "update_proj_gap", update_proj_gap, 1, 53))]
    adamw = [number(op, k, v) for k, v in of_adam.items()]
    if tensor_numbers is not None and not isinstance(tensor_numbers, (list, tuple)):
        raise TypeError(f"{op}: tensor_numbers must be a list or tuple, got {type(tensor_numbers).__name__}")
    params, (own,) = tensors["params"], tensors.keys() - {"params", "grads", "moments1", "moments2"}
    getattr(_core, op)(
        own_hyper,
        **tensors | {own: with_gaps(op, own, tensors[own], params)},
        masters=masters if masters is None else with_gaps(op, "masters", masters, params),
        adamw=adamw,
        seed=_within(op, "seed", seed, 0, 63),
        numbers=[_within(op, "tensor_numbers", k, 0, 32) for k in tensor_numbers or ()],
        scale=number(op, "inv_scale", inv_scale),
        step=t,
        lr=numbers(op, "lr", lr),
        weight_decay=numbers(op, "weight_decay", weight_decay),
        ratio=numbers(op, "ratio", ratio),
        centralize=flags(op, "centralize", centralize),
        skip=skip,
    )
