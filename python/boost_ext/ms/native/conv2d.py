"""Convolutions as native functions of graphs, with gradients of any order."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from .cell import as_first, custom

__all__ = ["Geometry", "convolved", "input_gradient"]

Geometry = tuple[int, ...]
"""The numbers of csrc/ops/patches.h, the outputs, and the groups."""


def convolved(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """float32 x (n, c, h, w), convolved with float32 w (outputs, c / groups, kh, kw) (csrc/ops/conv2d.h)."""
    return _native("conv2d", geometry)(x, w, _patches(geometry), _groups(geometry))


def input_gradient(dy: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Its gradient for float32 dy (n, outputs, oh, ow), which is a transposed convolution of dy."""
    return _native("conv2d_input_gradient", geometry)(dy, w, _patches(geometry), _groups(geometry))


@ops.constexpr  # type: ignore[untyped-decorator]
def _patches(geometry: Geometry) -> Tensor:
    return Tensor(np.array(geometry[:14], np.int32))


@ops.constexpr  # type: ignore[untyped-decorator]
def _groups(geometry: Geometry) -> Tensor:
    return Tensor(np.array(geometry[15:], np.int32))


# The graph compiler takes a primitive out of a function of constants, but knows no cached functions.
@ops.constexpr  # type: ignore[untyped-decorator]
def _native(symbol: str, geometry: Geometry) -> ops.Custom:
    return _primitive(symbol, geometry)


@functools.cache
def _primitive(symbol: str, geometry: Geometry) -> ops.Custom:
    """Each is linear in both tensors, and the other two are its gradients."""
    n, c, h, w, kh, kw = geometry[:6]
    oh, ow, outputs, groups = geometry[12:]

    def of_conv2d(x: Tensor, w: Tensor, patches: Tensor, groups: Tensor, out: Tensor, dout: Tensor) -> Any:
        dx = _native("conv2d_input_gradient", geometry)(dout, w, patches, groups)
        return dx, _native("conv2d_weight_gradient", geometry)(dout, x, patches, groups), patches, groups

    def of_input_gradient(dy: Tensor, w: Tensor, patches: Tensor, groups: Tensor, out: Tensor, dout: Tensor) -> Any:
        ddy = _native("conv2d", geometry)(dout, w, patches, groups)
        return ddy, _native("conv2d_weight_gradient", geometry)(dy, dout, patches, groups), patches, groups

    def of_weight_gradient(dy: Tensor, x: Tensor, patches: Tensor, groups: Tensor, out: Tensor, dout: Tensor) -> Any:
        ddy = _native("conv2d", geometry)(x, dout, patches, groups)
        return ddy, _native("conv2d_input_gradient", geometry)(dy, dout, patches, groups), patches, groups

    shape, bprop = {
        "conv2d": ((n, outputs, oh, ow), of_conv2d),
        "conv2d_input_gradient": ((n, c, h, w), of_input_gradient),
        "conv2d_weight_gradient": ((outputs, c // groups, kh, kw), of_weight_gradient),
    }[symbol]
    primitive = custom(symbol, lambda *inputs: shape, as_first, bprop=bprop)
    primitive.add_prim_attr("geometry", geometry)  # MindSpore takes primitives of the same attributes for one
    return primitive
