"""Dropout with a saved random state, without a stored mask."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import get_rank

from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.core.cell_tree import cell_names, replace_cells
from boost_ext.ms.core.randomness import dropped_share
from boost_ext.ms.core.state import state
from boost_ext.ms.loss_scale.group_loss_scale import AnyPrecision
from boost_ext.ms.ranks.ranks import rank_count
from boost_ext.ops.arguments import number

__all__ = ["Dropout", "replace_dropout"]


class _NextKey(AnyPrecision, native.DropoutKey):
    """The op; mixed precision does not cast its arguments."""


class _ApplyMask(AnyPrecision, native.DroppedOut):
    """The op; mixed precision does not cast its arguments."""


class _Drop(AnyPrecision):
    """``cell(x, state)``: x with a new mask, and the key that draws the mask again."""

    def __init__(self, p: float, rows: bool, stream: int) -> None:
        super().__init__()
        self.next_key = _NextKey(stream)
        self.apply_mask = _ApplyMask(p, rows)

    # The state comes as an argument: the graph compiler takes no Parameter that is an attribute here.
    def construct(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        key = self.next_key(state)
        return self.apply_mask(x, key), key

    def bprop(
        self, x: Tensor, state: Tensor, out: tuple[Tensor, Tensor], dout: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        return self.apply_mask(dout[0], out[1]), state  # the gradient of the state is never used


class Dropout(AnyPrecision):
    r"""Dropout with its random state in a Parameter. The backward pass draws the mask again.

    In training mode each element becomes 0 with probability `p`, and the others are multiplied by
    :math:`1 / (1 - p)`; otherwise the output is `x`. Replaces ``mindspore.nn.Dropout`` and ``Dropout1d`` to
    ``Dropout3d``, whose random state is hidden. Here it is saved, so a resumed training has the same bits. No mask is
    stored for the backward pass. Masks are those of :func:`boost_ext.ops.dropout`: the same in both modes and for any
    number of threads, and different on each rank.

    ``dropout_state``, int32 (4,), is part of the network's checkpoint: the seed, low half first, the number of passes,
    and 0.

    Source: Srivastava et al., JMLR 2014; `shared_axes`: Tompson et al., CVPR 2015.

    Args:
        p (float): 0 <= p < 1, rounded to a multiple of 2^-16. Default: 0.5.
        shared_axes (int, optional): the number of last axes that share a random draw. 1, 2 and 3 are ``Dropout1d``,
            ``Dropout2d`` and ``Dropout3d``, which drop whole channels. Default: 0.
        seed (int, optional): 0 <= seed < 2^64. Default: drawn from NumPy's generator, which ``mindspore.set_seed``
            seeds.

    Inputs:
        - **x** (Tensor) - float32, float16 or bfloat16.

    Outputs:
        Tensor, like `x`.

    Raises:
        TypeError: if `p` is no number, or `shared_axes` or `seed` is no int.
        ValueError: if one of them is out of range.

    Make it after ``mindspore.communication.init``, or all ranks draw the masks of rank 0. Do not use it in a cell that
    is recomputed (``Cell.recompute``): the second forward pass would draw another mask.

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from boost_ext.boost import Dropout
        >>> layer = Dropout(p=0.5, seed=1).set_train()
        >>> y = layer(ms.ops.ones((1000,)))
        >>> print(np.unique(y.asnumpy()), layer.dropout_state.asnumpy())
        [0. 2.] [1 0 1 0]
    """

    @checked_keywords
    def __init__(self, p: float = 0.5, *, shared_axes: int = 0, seed: int | None = None) -> None:
        super().__init__()
        self.p = number("Dropout", "p", p)
        if not 0 <= self.p < 1:
            raise ValueError(f"Dropout: p must be >= 0 and < 1, got {self.p}")
        for name, value, most in (("shared_axes", shared_axes, 8), ("seed", 0 if seed is None else seed, 2**64)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Dropout: {name} must be an int, got {type(value).__name__}")
            if not 0 <= value < most:
                raise ValueError(f"Dropout: {name} must be >= 0 and < {most}, got {value}")
        self.shared_axes = shared_axes
        words = np.random.randint(0, 2**32, 2, np.uint32) if seed is None else [seed % 2**32, seed >> 32]  # noqa: NPY002
        self.dropout_state = state("dropout_state", np.asarray([*words, 0, 0], np.uint32).view(np.int32))
        self.drop = _Drop(self.p, shared_axes > 0, get_rank() if rank_count() > 1 else 0)

    # A local name: see Observed in boost_ext.ms.optim.thor_layers.
    def construct(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        drop = self.drop
        if self.shared_axes == 0:
            return drop(x, self.dropout_state)[0]
        rows = ops.reshape(x, (*x.shape[: x.ndim - self.shared_axes], -1))
        return ops.reshape(drop(rows, self.dropout_state)[0], x.shape)

    def extend_repr(self) -> str:
        return f"p={self.p}" + (f", shared_axes={self.shared_axes}" if self.shared_axes else "")


_SHARED_AXES = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def replace_dropout(network: nn.Cell) -> tuple[str, ...]:
    """Replace each dropout layer of MindSpore in a network by a :class:`Dropout`, in place.

    Call it before the training cell is made; the optimizer may exist. Subclasses of MindSpore's layers, and calls of
    functions such as ``mindspore.ops.dropout``, are not replaced.

    Args:
        network (Cell): with or without its loss. Its cells are replaced, not the cell itself.

    Returns:
        tuple[str], the names of the replaced layers.

    Raises:
        TypeError: if `network` is no Cell.
        ValueError: if `network` is itself a dropout layer.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext import boost
        >>> net = nn.SequentialCell(nn.Dense(8, 4), nn.ReLU(), nn.Dropout(p=0.2), nn.Dense(4, 3))
        >>> boost.replace_dropout(net)
        ('2',)
    """
    if not isinstance(network, nn.Cell):
        raise TypeError(f"replace_dropout: network must be a Cell, got {type(network).__name__}")
    if type(network) in _SHARED_AXES:
        raise ValueError("replace_dropout: network must hold its dropout layers, got one alone; make a boost.Dropout")
    new: dict[int, nn.Cell] = {}
    names = cell_names(network)
    for _, cell in network.cells_and_names():
        if type(cell) in _SHARED_AXES and 0 < (p := dropped_share(cell)) < 1:
            new[id(cell)] = layer = Dropout(p, shared_axes=_SHARED_AXES[type(cell)])
            layer.set_train(cell.training)
    replace_cells(network, new)
    for key, layer in new.items():
        layer.dropout_state.name = f"{names[key]}.dropout_state"
    return tuple(names[key] for key in new)
