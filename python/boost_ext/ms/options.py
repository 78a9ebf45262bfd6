"""What a training cell must know besides network and optimizer: it travels with the optimizer AutoBoost returns."""

from __future__ import annotations

from dataclasses import dataclass

from mindspore import nn

from boost_ext.config import DimReduceConfig
from boost_ext.ms.clipping import checked_clip_norm
from boost_ext.ms.freeze_optimizer import FreezeOpt
from boost_ext.ms.grad_accumulation import checked_steps
from boost_ext.ms.optim.thor import Thor

__all__ = ["StepOptions", "step_options"]


@dataclass(frozen=True)
class StepOptions:
    """Options of one training step.

    Attributes:
        accumulation_steps: micro-batches for each update of the weights.
        dim_reduce: configuration of dimension-reduced training, or None.
        clip_norm: greatest norm of all gradients together, or None.
        adasum_devices: devices of a node if AdaSum adds up over nodes, or None.
    """

    accumulation_steps: int = 1
    dim_reduce: DimReduceConfig | None = None
    clip_norm: float | None = None
    adasum_devices: int | None = None


def step_options(
    owner: str,
    optimizer: nn.Cell,
    dim_reduce: DimReduceConfig | None,
    accumulation_steps: int | None,
    clip_norm: float | None,
) -> StepOptions:
    """What the optimizer brings, as ``boost_options``, with the keywords of a training cell over it."""
    brought = getattr(optimizer, "boost_options", StepOptions())
    steps = brought.accumulation_steps if accumulation_steps is None else accumulation_steps
    options = StepOptions(
        checked_steps(owner, "accumulation_steps", steps),
        brought.dim_reduce if dim_reduce is None else dim_reduce,
        checked_clip_norm(owner, clip_norm),
        brought.adasum_devices,
    )
    if options.dim_reduce is not None and (options.accumulation_steps > 1 or isinstance(optimizer, FreezeOpt)):
        raise ValueError(f"{owner}: dim_reduce must be the only algorithm, got freezing or accumulation with it")
    if options.dim_reduce is not None and options.clip_norm is not None:
        raise ValueError(f"{owner}: clip_norm must be None with dim_reduce, which searches the length of its step")
    if isinstance(optimizer, Thor):
        if options != StepOptions():
            raise ValueError(
                f"{owner}: thor must be the only algorithm, got dim_reduce, accumulation, adasum or clip_norm with it"
            )
        optimizer.require_one_scale(owner)
    return options
