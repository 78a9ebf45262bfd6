"""The adaptive sum over ranks: see csrc/ops/adasum_part.h.

All take as first input a plan, float64: whether a float16 vector holds the bits of bfloat16, for which MindSpore has no
collective on the CPU; then which part, or which parts; then the sizes of the tensors.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor

from .cell import GraphOp, NativeCell, NativeFunction, new_like, new_tensor

_WORDS = 12  # of one tensor


def _dots_shape(plan: Any, a: Any, b: Any) -> Any:
    return (_WORDS * (plan[0] - 2),)


def _float32(plan: Any, a: Any, b: Any) -> Any:
    return ms.float32


class AdasumPartDots(NativeFunction):
    """``cell(plan, a, b)``: the dot products of a part, float32 (12 T,)."""

    symbol = "adasum_part_dots"
    primitive = GraphOp(_dots_shape, _float32)

    def new_outputs(self, plan: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return new_tensor(_dots_shape(plan.shape, a.shape, b.shape), ms.float32)


def _as_a(plan: Any, a: Any, b: Any, dots: Any) -> Any:
    return a


class AdasumPartCombine(NativeFunction):
    """``cell(plan, a, b, dots)``: the adaptive sum of a part, with the dot products of all ranks."""

    symbol = "adasum_part_combine"
    primitive = GraphOp(_as_a, _as_a)

    def new_outputs(self, plan: Tensor, a: Tensor, b: Tensor, dots: Tensor) -> Tensor:
        return new_like((a,))[0]


class AdasumPartPack(NativeCell):
    """``cell(plan, vector, tensors)``: the tensors into the vector."""

    symbol, read_only = "adasum_part_pack", (2,)


class AdasumPartPackDifference(NativeCell):
    """``cell(plan, vector, a, b)``: a - b into the vector."""

    symbol = "adasum_part_pack_difference"


class AdasumPartKeep(NativeCell):
    """``cell(plan, weights, out, halves)``: notes weights; plan: 0, and which of them are masters of the halves."""

    symbol = "adasum_part_keep"


class AdasumPartApply(NativeCell):
    """``cell(plan, vector, old, weights, halves)``: weights = old - vector, and the halves beside them.

    The plan goes on with the number of parts, the parts in the order of the vector, which weights have halves.
    """

    symbol, read_only = "adasum_part_apply", (1,)
