"""Loss scaling for a training loop of one's own, by the names of ``mindspore.amp``."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp, mutable, nn, ops

from boost_ext.ms import native
from boost_ext.ms.loss_scale.loss_scale_update import check_int, check_scale

__all__ = ["DynamicLossScaler", "StaticLossScaler", "all_finite"]

_all_finite = native.AllFinite()


def all_finite(inputs: Tensor | Sequence[Tensor]) -> Tensor:
    """Whether no element of any tensor is inf or nan.

    One native pass, called by Python and in a graph. Replaces ``mindspore.amp.all_finite``.

    Args:
        inputs (Union[Tensor, tuple[Tensor], list[Tensor]]): of any shapes and dtypes; only read.

    Returns:
        Tensor, scalar, bool.

    Raises:
        RuntimeError: on another device than the CPU.

    Examples:
        >>> from mindspore import Tensor
        >>> from boost_ext import amp
        >>> print(amp.all_finite((Tensor([1.0, 2.0]), Tensor([float("inf")]))))
        False
    """
    return _all_finite((inputs,) if isinstance(inputs, Tensor) else inputs)


_each = ops.HyperMap()


def _product(factor: Tensor, x: Tensor) -> Tensor:
    return x * ops.cast(factor, x.dtype)


@ms.jit  # type: ignore[untyped-decorator]
def _times(factor: Tensor, inputs: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return _each(ops.partial(_product, factor), inputs)


@ms.jit  # type: ignore[untyped-decorator]
def _divided_by(factor: Tensor, inputs: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return _each(ops.partial(_product, ops.reciprocal(factor)), inputs)


class _Adjust(nn.Cell):
    """``cell(finite)``: the next scale and the next count; in a graph by operators, else by the host."""

    def __init__(self, scale: Parameter, counter: Parameter, factor: int, window: int) -> None:
        super().__init__(auto_prefix=False)
        self.scale, self.counter = scale, counter
        self.factor, self.window = float(factor), window

    def construct(self, finite: Tensor) -> bool:
        scale, counter = self.scale.value(), self.counter.value()
        grown = scale * self.factor
        due = ops.logical_and(counter == self.window - 1, ops.isfinite(grown))
        shrunk = ops.maximum(scale / self.factor, ops.ones_like(scale))
        scale = ops.select(finite, ops.select(due, grown, scale), shrunk)
        counter = (counter + 1) % self.window * ops.cast(finite, ms.int32)
        ops.assign(self.scale, scale)
        ops.assign(self.counter, counter)
        return True

    def __call__(self, finite: Tensor | bool) -> bool:
        scale, counter = np.float32(self.scale.asnumpy()), int(self.counter.asnumpy())
        factor = np.float32(self.factor)
        if not bool(finite):
            following, counter = max(scale / factor, np.float32(1)), 0
        else:
            with np.errstate(over="ignore"):
                grown = scale * factor
            following = grown if counter == self.window - 1 and np.isfinite(grown) else scale
            counter = (counter + 1) % self.window
        # In place, for graphs that have been compiled.
        if following != scale:
            ops.assign(self.scale, Tensor(following, ms.float32))
        ops.assign(self.counter, Tensor(counter, ms.int32))
        return True


class _ByValue:
    """``scale`` and ``unscale`` by the value of the scale.

    MindSpore's own pass the parameter, and find the compiled function by its address. If a scaler that is gone had the
    same, its value is read. A value has no such key.
    """

    scale_value: Parameter

    def scale(self, inputs: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        """`inputs` times the scale."""
        return _times(self.scale_value.value(), mutable(inputs))

    def unscale(self, inputs: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        """`inputs` divided by the scale."""
        return _divided_by(self.scale_value.value(), mutable(inputs))


class StaticLossScaler(_ByValue, amp.StaticLossScaler):  # type: ignore[misc]
    """A fixed loss scale, for a loop of one's own.

    Replaces ``mindspore.amp.StaticLossScaler``: the same numbers. In a process that makes several scalers it is
    right where MindSpore 2.10 may divide the gradients by the scale of one that is gone.

    Args:
        scale_value (Union[float, int]): the scale, finite and >= 1.

    Raises:
        TypeError: for an argument of another type; a bool is no number.
        ValueError: for a value out of this range.

    Attributes:
        scale_value (Parameter): float32 scalar.

    Examples:
        >>> from mindspore import Tensor
        >>> from boost_ext import amp
        >>> scaler = amp.StaticLossScaler(8)
        >>> print(scaler.scale(Tensor(2.0)), scaler.unscale((Tensor([4.0]),)))
        16.0 (Tensor(shape=[1], dtype=Float32, value= [ 5.00000000e-01]),)
    """

    def __init__(self, scale_value: float) -> None:
        super().__init__(check_scale(type(self).__name__, "scale_value", scale_value))


class DynamicLossScaler(_ByValue, amp.DynamicLossScaler):  # type: ignore[misc]
    """A loss scale that follows the gradients, for a loop of one's own.

    Replaces ``mindspore.amp.DynamicLossScaler``: the same state and the same numbers. In a process that makes several
    scalers it is right where MindSpore 2.10 may divide the gradients by the scale of one that is gone.

    Args:
        scale_value (Union[float, int]): the first scale, finite and >= 1.
        scale_factor (int): >= 1. Steps with inf or nan divide the scale by it, not below 1.
        scale_window (int): >= 1. After so many finite steps in a row the scale is multiplied with `scale_factor`, where
            the product is finite.

    Raises:
        TypeError: for an argument of another type; a bool is no number.
        ValueError: for values out of these ranges.

    Attributes:
        scale_value (Parameter): float32 scalar.
        counter (Parameter): int32 scalar, finite steps since the last change.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext import amp
        >>> net, loss_fn = nn.Dense(4, 1), nn.MSELoss()
        >>> optimizer, scaler = nn.SGD(net.trainable_params(), 0.1), amp.DynamicLossScaler(2**16, 2, 1000)
        >>> def forward(x, y):
        ...     return scaler.scale(loss_fn(net(x), y))
        >>> gradients = ms.value_and_grad(forward, None, optimizer.parameters)
        >>> loss, grads = gradients(ms.ops.ones((2, 4)), ms.ops.ones((2, 1)))
        >>> loss, grads = scaler.unscale(loss), scaler.unscale(grads)
        >>> finite = amp.all_finite(grads)
        >>> if finite:
        ...     _ = optimizer(grads)
        >>> print(finite, scaler.adjust(finite))
        True True
    """

    def __init__(self, scale_value: float, scale_factor: int, scale_window: int) -> None:
        owner = type(self).__name__
        value = check_scale(owner, "scale_value", scale_value)
        factor = check_int(owner, "scale_factor", scale_factor, 1, 2**24)
        window = check_int(owner, "scale_window", scale_window, 1)
        super().__init__(value, factor, window)
        self._adjust = _Adjust(self.scale_value, self.counter, factor, window)

    def adjust(self, grads_finite: Tensor) -> bool:
        """Take note of a step: whether its gradients were finite. Returns True."""
        return self._adjust(grads_finite)
