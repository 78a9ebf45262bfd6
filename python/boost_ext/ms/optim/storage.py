"""Storage of optimizer state: float32, bfloat16, or codes of one byte with a scale for each block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from boost_ext.ms.core.state import filled
from boost_ext.ms.optim.masters import is_split, next_master, split_master
from boost_ext.ops.optimizer_state import STATE_BLOCK, dequantize_state, quantize_state

__all__ = ["StateStorage", "convert_state", "state_like"]

STATE_DTYPES = {"float32": ms.float32, "bfloat16": ms.bfloat16, "float8": ms.uint8}
SMALL = 4096
_SECOND = 1  # the state that holds squares


def state_like(
    parameters: Sequence[Parameter], prefix: str, value: float = 0.0, dtype: Any = ms.float32
) -> ParameterTuple:
    """State of the parameters' shapes, with the names that ``ParameterTuple.clone`` gives. It is of `dtype`, and
    float32 for small parameters."""

    def initial(shape: tuple[int, ...]) -> Tensor:
        return filled(shape, value, dtype if np.prod(shape) >= SMALL else ms.float32)

    return ParameterTuple(Parameter(initial(tuple(p.shape)), name=f"{prefix}.{p.name}") for p in parameters)


class StateStorage:
    """The `state_dtype` and the `state_seed` of an optimizer.

    * ``"float32"``: 4 bytes an element of a state.
    * ``"bfloat16"``: 2 bytes.
    * ``"float8"``: 1 byte, the code of :func:`boost_ext.ops.quantize_state`, and a float32 scale for 256 elements. The
      codes are the Parameter ``moment1.<name>``, uint8, the scales ``moment1_scale.<name>``.

    Parameters of fewer than 4096 elements keep float32 state: it is small, and biases and norms need it most. The
    arithmetic is always float32. Stored values are rounded up or down at random, so that their mean is the float32
    value. The random bits come from `state_seed`, ``global_step`` and the place of the element: a resumed training, or
    one on more threads, makes the same steps.

    Args:
        owner (str): the class, for messages.
        dtype (str): see above. Default: "float32".
        seed (int): in [0, 2**31). Default: 0.

    Raises:
        TypeError: if an argument has another type.
        ValueError: if `dtype` is another one, or `seed` out of range.
    """

    def __init__(self, owner: str, dtype: str = "float32", seed: int = 0) -> None:
        if not isinstance(dtype, str):
            raise TypeError(f"{owner}: state_dtype must be a str, got {type(dtype).__name__}")
        if dtype not in STATE_DTYPES:
            raise ValueError(f"{owner}: state_dtype must be one of {', '.join(STATE_DTYPES)}, got {dtype!r}")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise TypeError(f"{owner}: state_seed must be an int, got {type(seed).__name__}")
        if not 0 <= seed < 2**31:
            raise ValueError(f"{owner}: state_seed must be in [0, 2**31), got {seed}")
        self.dtype, self.seed = dtype, seed
        self.scales: list[ParameterTuple] = []

    def state_like(self, parameters: Sequence[Parameter], prefix: str) -> ParameterTuple:
        """State of zeros. Its scales go to ``scales``, where a state without codes is its own entry."""
        state = state_like(parameters, prefix, 0.0, STATE_DTYPES[self.dtype])
        if self.dtype == "float8":
            named = zip(state, parameters, strict=True)
            self.scales.append(ParameterTuple(_scale_of(s, f"{prefix}_scale.{p.name}") for s, p in named))
        return state


def _scale_of(state: Parameter, name: str) -> Parameter:
    if state.dtype != ms.uint8:
        return state
    blocks = -(-state.size // STATE_BLOCK)
    return Parameter(Tensor(np.zeros(blocks, np.float32)), name=name, requires_grad=False)


def convert_state(checkpoint: Mapping[str, Any], optimizer: nn.Optimizer) -> dict[str, Any]:
    """Convert a checkpoint to the storage of an optimizer: from another `state_dtype` or `master`, or from
    ``mindspore.nn``.

    ``ms.load_param_into_net(optimizer, convert_state(ms.load_checkpoint(path), optimizer))``. Values are rounded to
    nearest. Entries that need no conversion are returned as they are. With masters of another form, the result holds
    their parameters too: halfway between two of them a split master rounds away from 0, and float32 to an even one.
    Where the checkpoint has no masters, split ones become equal to its parameters.

    Args:
        checkpoint (dict): of ``mindspore.load_checkpoint``, or a ``state_dict``; of an optimizer of the same class.
        optimizer (FusedOptimizer): will load the result.

    Returns:
        dict, the converted checkpoint.

    Raises:
        ValueError: if codes come without their scales, or residuals without their bfloat16 parameters.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext import optim
        >>> net = nn.Dense(64, 64)
        >>> ms.save_checkpoint(nn.Adam(net.trainable_params()), "adam.ckpt")
        >>> optimizer = optim.Adam(net.trainable_params(), state_dtype="float8")
        >>> state = optim.convert_state(ms.load_checkpoint("adam.ckpt"), optimizer)
        >>> state["moment1.weight"].dtype
        mindspore.uint8
        >>> ms.load_param_into_net(optimizer, state)
        ([], [])
    """
    entries = dict(checkpoint)
    for k in range(optimizer.number_of_states):
        for state in getattr(optimizer, f"states{k}"):
            if state.name not in entries:
                continue
            found = entries[state.name]
            prefix, _, name = state.name.partition(".")
            scale_name = f"{prefix}_scale.{name}"
            if found.dtype == state.dtype:
                continue
            signs = {"non_negative": k == _SECOND}
            values = found.asnumpy()
            if found.dtype == ms.uint8:
                if scale_name not in entries:
                    raise ValueError(f"convert_state: checkpoint must hold {scale_name} with {state.name}")
                values = dequantize_state(values, entries.pop(scale_name).asnumpy(), **signs)
            values = values.astype(np.float32)
            if state.dtype == ms.uint8:
                values, scales = quantize_state(values, **signs)
                entries[scale_name] = Parameter(Tensor(scales), name=scale_name, requires_grad=False)
            made = Tensor(values).astype(state.dtype) if state.dtype == ms.bfloat16 else Tensor(values)
            entries[state.name] = Parameter(made, name=state.name)
    for parameter, master in zip(optimizer.parameters, optimizer.masters, strict=True):
        if parameter is not master:
            _convert_master(entries, parameter, master)
    return entries


def _convert_master(entries: dict[str, Any], parameter: Parameter, master: Parameter) -> None:
    half, kept = entries.get(parameter.name), entries.get(master.name)
    if kept is None and half is not None and is_split(master):
        wide = half.astype(ms.float32).asnumpy()
    elif kept is None or kept.dtype == master.dtype:
        return
    elif is_split(kept) and (half is None or half.dtype != ms.bfloat16):
        raise ValueError(f"convert_state: checkpoint must hold {parameter.name} in bfloat16 with {master.name}")
    else:
        wide = kept.asnumpy() if half is None else next_master(half, kept)
    made = split_master(wide, parameter.dtype, master.dtype)
    for like, value in zip((parameter, master), made, strict=True):
        entries[like.name] = Parameter(value, name=like.name)
