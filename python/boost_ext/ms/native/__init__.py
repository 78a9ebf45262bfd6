"""The native ops inside MindSpore: each is one Cell with two ways in.

* ``construct`` holds an ``ops.Custom`` primitive: what the graph compiler sees, in GRAPH_MODE and under ``ms.jit``. It
  calls the C ABI of the same library that the Python functions live in. A primitive that writes its inputs says so
  (``side_effect_mem``), or the graph compiler would drop, merge or reorder it.
* ``__call__`` hands the tensors' pointers to the same function (``_core.call``) when Python runs the cell in
  PYNATIVE_MODE. A pointer is fetched right before the call, which also waits for whatever op was still writing that
  tensor, and never kept.

Tensors that are written are written in place in both modes. Every cell returns a bool Tensor of shape (1,). Reading a
Parameter afterwards sees the write. A gradient is a plain value to the graph compiler, which may compute an expression
of it before the write: read it through ``ops.depend(grads, result)``.
On a device other than MindSpore's CPU a cell can be built, and refuses to run.
This is the only package that knows where the library lies.
"""

from boost_ext import _core
from boost_ext.ops import loss_scale_update as update_loss_scale

from .adasum import (
    AdasumPartApply,
    AdasumPartCombine,
    AdasumPartDots,
    AdasumPartKeep,
    AdasumPartPack,
    AdasumPartPackDifference,
)
from .cell import NativeCell, PackedCell, absent, calls_by_pointer, contiguous, in_pynative_mode
from .curvature import Covariance, DampedInverse, Preconditioned
from .dim_reduce import (
    DimReduceApply,
    DimReduceDirection,
    DimReduceTrial,
    PcaBackProject,
    PcaProject,
    SubspacePoint,
)
from .dropout import DropoutKey, DroppedOut
from .gradients import (
    Accumulate,
    AdaptiveClipped,
    Centralized,
    ClipByGlobalNorm,
    EmaUpdate,
    Flatten,
    TensorStatistics,
    Unflatten,
)
from .loss_scale import (
    AllFinite,
    CheckAndClip,
    GroupLossScaleUpdate,
    GroupUnscaleAndCheck,
    LossScaleUpdate,
    UnscaleAndCheckReport,
)
from .timestamp import Timestamp

__all__ = [
    "Accumulate",
    "AdaptiveClipped",
    "AdasumPartApply",
    "AdasumPartCombine",
    "AdasumPartDots",
    "AdasumPartKeep",
    "AdasumPartPack",
    "AdasumPartPackDifference",
    "AllFinite",
    "Centralized",
    "CheckAndClip",
    "ClipByGlobalNorm",
    "Covariance",
    "DampedInverse",
    "DimReduceApply",
    "DimReduceDirection",
    "DimReduceTrial",
    "DropoutKey",
    "DroppedOut",
    "EmaUpdate",
    "Flatten",
    "GroupLossScaleUpdate",
    "GroupUnscaleAndCheck",
    "LossScaleUpdate",
    "NativeCell",
    "PackedCell",
    "PcaBackProject",
    "PcaProject",
    "Preconditioned",
    "SubspacePoint",
    "TensorStatistics",
    "Timestamp",
    "Unflatten",
    "UnscaleAndCheckReport",
    "absent",
    "call",
    "calls_by_pointer",
    "contiguous",
    "fixed_arrays",
    "in_pynative_mode",
    "optimizer_rules",
    "require_same",
    "rule_facts",
    "update_loss_scale",
]

call = _core.call
fixed_arrays, require_same = _core.fixed_arrays, _core.require_same
optimizer_rules = _core.optimizer_rules
rule_facts = _core.rule_facts
