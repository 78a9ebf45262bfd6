"""An op that the product calls inside another op only, as a cell of its own."""

from boost_ext.ms.native import NativeCell


class BfgsUpdate(NativeCell):
    """``cell(B, s, y, eps)``"""

    symbol = "bfgs_update"
