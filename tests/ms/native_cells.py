"""Ops that the product calls inside other ops only, each as a cell of its own."""

from boost_ext.ms.native import NativeCell


class AdasumPair(NativeCell):
    """``cell(a, b, out)``"""

    symbol, read_only = "adasum_pair", (0, 1)


class BfgsUpdate(NativeCell):
    """``cell(B, s, y, eps)``"""

    symbol = "bfgs_update"


class GlobalNorm(NativeCell):
    """``cell(norm, tensors)``"""

    symbol, read_only = "global_norm", (1,)
