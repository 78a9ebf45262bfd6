"""The algorithms of a training step. Each brings what fills its slots, from its own module.

A training cell walks over the tables and knows no algorithm. It calls what stands beside an option that it was given,
with itself as the first argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boost_ext.ms.core.adaptive_clip import AdaptiveClipping
from boost_ext.ms.core.clipping import Clipping
from boost_ext.ms.step.adasum_step import over_nodes
from boost_ext.ms.step.dim_reduce_step import ApplyDimReduce
from boost_ext.ms.step.grad_accumulation import ApplyAccumulated
from boost_ext.ms.step.local_steps import local_steps_of
from boost_ext.ms.step.pipeline import ApplySlot
from boost_ext.ms.subspace.moving_average import AverageAfterStep

__all__ = ["APPLY", "PARTS"]

PARTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "adasum_update": ("adasum_devices", over_nodes),
    "clipping": ("clip_norm", Clipping),
    "adaptive_clipping": ("adaptive_clip", AdaptiveClipping),
    "accumulation": ("accumulation_steps", ApplyAccumulated.hold),
    "average": ("weight_average", AverageAfterStep),
    "local_steps": ("local_steps", local_steps_of),
}
"""What the pipelines share, by the attribute of the cell that holds it, else None. Each may read those before it."""

APPLY: dict[str, Callable[[Any, Any], ApplySlot]] = {
    "dim_reduce": ApplyDimReduce,
    "accumulation_steps": ApplyAccumulated.of,
}
"""The apply slot for an optimizer; without such an option the optimizer steps on the gradients."""
