"""Convolutions of few input channels a group or of 3 x 3, as native functions of graphs with gradients of any order."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from .cell import as_first, custom

__all__ = ["Geometry", "convolved"]

Geometry = tuple[int, ...]
"""The numbers of csrc/ops/patches.h, the outputs, and the groups."""


def convolved(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """float32 x (n, c, h, w), convolved with float32 w (outputs, c / groups, kh, kw) (csrc/ops/conv2d.h)."""
    return _conv2d(geometry)(x, w, _patches(geometry), _groups(geometry))


def _input_gradient(dy: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    return _conv2d_input_gradient(geometry)(dy, w, _patches(geometry), _groups(geometry))


def _weight_gradient(dy: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    return _conv2d_weight_gradient(geometry)(dy, x, _patches(geometry), _groups(geometry))


@ops.constexpr  # type: ignore[untyped-decorator]
def _patches(geometry: Geometry) -> Tensor:
    return Tensor(np.array(geometry[:14], np.int32))


@ops.constexpr  # type: ignore[untyped-decorator]
def _groups(geometry: Geometry) -> Tensor:
    return Tensor(np.array(geometry[15:], np.int32))


# The graph compiler takes a primitive out of a function of constants, but knows no cached functions.
@ops.constexpr  # type: ignore[untyped-decorator]
def _conv2d(geometry: Geometry) -> ops.Custom:
    return _conv2d_primitive(geometry)


@ops.constexpr  # type: ignore[untyped-decorator]
def _conv2d_input_gradient(geometry: Geometry) -> ops.Custom:
    return _input_gradient_primitive(geometry)


@ops.constexpr  # type: ignore[untyped-decorator]
def _conv2d_weight_gradient(geometry: Geometry) -> ops.Custom:
    return _weight_gradient_primitive(geometry)


def _primitive(symbol: str, shape: Geometry, geometry: Geometry, bprop: Any) -> ops.Custom:
    primitive = custom(symbol, lambda *inputs: shape, as_first, bprop=bprop)
    primitive.add_prim_attr("geometry", geometry)  # MindSpore takes primitives of the same attributes for one
    return primitive


@functools.cache
def _conv2d_primitive(geometry: Geometry) -> ops.Custom:
    n, oh, ow, outputs = geometry[0], *geometry[12:15]

    def bprop(x: Tensor, w: Tensor, patches: Tensor, groups: Tensor, out: Tensor, dout: Tensor) -> Any:
        return _input_gradient(dout, w, geometry), _weight_gradient(dout, x, geometry), patches, groups

    return _primitive("conv2d", (n, outputs, oh, ow), geometry, bprop)


@functools.cache
def _input_gradient_primitive(geometry: Geometry) -> ops.Custom:
    def bprop(dy: Tensor, w: Tensor, patches: Tensor, groups: Tensor, out: Tensor, dout: Tensor) -> Any:
        return convolved(dout, w, geometry), _weight_gradient(dy, dout, geometry), patches, groups

    return _primitive("conv2d_input_gradient", geometry[:4], geometry, bprop)


@functools.cache
def _weight_gradient_primitive(geometry: Geometry) -> ops.Custom:
    c, kh, kw, outputs, groups = geometry[1], *geometry[4:6], *geometry[14:]

    def bprop(dy: Tensor, x: Tensor, patches: Tensor, groups: Tensor, out: Tensor, dout: Tensor) -> Any:
        return convolved(x, dout, geometry), _input_gradient(dy, dout, geometry), patches, groups

    return _primitive("conv2d_weight_gradient", (outputs, c // groups, kh, kw), geometry, bprop)
