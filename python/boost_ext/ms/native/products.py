"""Products of matrices, as native functions of graphs with gradients of any order."""

from __future__ import annotations

import functools
import math

import numpy as np
from mindspore import Tensor, ops

from boost_ext import convolutions
from boost_ext._core import build_info, has_narrow_products

from .cell import as_first, custom, flag
from .shapes import Ints, Shape, of_shapes

__all__ = ["has_avx512", "product", "wins"]

# Where a layer and its gradients took 0.4 to 1.0 of the time of MindSpore's, with one thread and with two.
_FEW_ROWS, _LEAST_WEIGHTS = 32, 4096


def has_avx512() -> bool:
    """Whether native functions run with AVX-512, where oneDNN computes no convolution fast that is larger
    than 1 x 1 or has a stride (boost_ext/convolutions.py)."""
    return bool(build_info()["isa"] == "avx512")


@of_shapes
def wins(a: Shape, b: Shape) -> bool:
    """In a graph: whether factors of these shapes take less time by :func:`product` than by MindSpore's function: few
    rows, so that the memory binds them; any sizes where AVX-512 is hidden from oneDNN, or where factors are rounded to
    bfloat16. Otherwise steps of transformers are faster by MindSpore's."""
    isa = build_info()["isa"]
    few = len(a) == 2 and a[0] <= _FEW_ROWS and math.prod(b) >= _LEAST_WEIGHTS and isa != "baseline"
    everywhere = has_narrow_products() or (isa == "avx512" and not convolutions.are_slow())
    return bool(few or everywhere)


def product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    """float32 a (..., m, k) times float32 b (..., k, n), each with its last two axes swapped first where that is said
    (csrc/ops/matmul.h). All axes before are the same."""
    sizes = _sizes(a, b, transpose_a, transpose_b)
    return _native(a, b, transpose_a, transpose_b)(a, b, sizes, flag(transpose_a), flag(transpose_b))


@of_shapes
def _sizes(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> Tensor:
    m, k = a[-2:][::-1] if transpose_a else a[-2:]
    n = b[-2] if transpose_b else b[-1]
    return Tensor(np.array([np.prod(a[:-2], dtype=np.int64), m, k, n], np.int32))


# The graph compiler takes a primitive out of a function of constants, but knows no cached functions.
@of_shapes
def _native(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> ops.Custom:
    return _primitive(tuple(a), tuple(b), transpose_a, transpose_b)


@functools.cache
def _primitive(a: Ints, b: Ints, transpose_a: bool, transpose_b: bool) -> ops.Custom:
    shape = (*a[:-1], b[-2] if transpose_b else b[-1])
    if transpose_a:
        shape = (*a[:-2], a[-1], shape[-1])

    def bprop(
        a: Tensor, b: Tensor, sizes: Tensor, flag_a: Tensor, flag_b: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, ...]:
        da = product(b, dout, transpose_b, True) if transpose_a else product(dout, b, False, not transpose_b)
        db = product(dout, a, True, transpose_a) if transpose_b else product(a, dout, not transpose_a, False)
        return da, db, sizes, flag_a, flag_b

    primitive = custom("matmul", lambda *inputs: shape, as_first, bprop=bprop)
    primitive.add_prim_attr("shapes", (*a, 0, *b, 0, int(transpose_a), int(transpose_b)))  # see conv2d.py
    return primitive
