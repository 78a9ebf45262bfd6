"""The fused ops, on arrays.

Every op works in place on memory that you own, without a copy, on

* NumPy arrays (bfloat16 through ``ml_dtypes``),
* MindSpore tensors and parameters on the CPU, by pointer,
* PyTorch tensors, CuPy arrays, and others with ``__dlpack__`` or ``__cuda_array_interface__`` on a CPU or CUDA device,
* JAX arrays, to read: they are immutable, and a call that would write one is refused; work on ``numpy.array(x)``,

of dtype float32, float16 or bfloat16 unless said otherwise. Where an op takes *tensors*, it takes one array or a list
or tuple of arrays and handles all of them in one native call. Those that are written must be writable and must not
overlap other arguments, except where a docstring says so. The GIL is released. Results have the same bits for any
number of threads (:func:`boost_ext.set_num_threads`) and on any CPU.

Arrays must be C-contiguous. :func:`accumulate`, :func:`unscale_and_check`, :func:`clip_by_global_norm`,
:func:`global_norm`, :func:`tensor_statistics`, :func:`lars_ratios`, the adaptive sum and the steps of the optimizers
(but for `indices`, `centralize`, :func:`adafactor_step`, :func:`apollo_step`, :func:`galore_step` and
:func:`muon_step`) also take other dense arrays, such as PyTorch's ``channels_last`` and NumPy's Fortran order: the
first tensor of every list then has one shape and the same strides, and so on. They go through the elements in the
order of the memory, which decides the last bits of sums, and what rounding at random draws.

PyTorch's autograd is told of tensors that were written (their version counters), so that it can refuse a backward pass
that needs the old values. A tensor that requires a gradient is taken only where PyTorch records none
(``torch.no_grad()``). New results are PyTorch's where the tensors are.

Types: annotations are those of arrays on the host. Of arrays on a device an op returns an array where it returns a
``bool`` or a ``float`` here, and a ``boost_ext.cuda.DeviceReport`` where it returns a :class:`FiniteReport`.

Errors: ``TypeError`` for objects that are no arrays and for dtypes, ``ValueError`` for everything else that is wrong
with an argument, ``RuntimeError`` for arrays on a device that this build has no kernels for. The message names the op,
the argument, what was expected and what it got. A refused call has written nothing.
"""

from __future__ import annotations

from typing import Any, overload

from boost_ext import _core
from boost_ext.ops.adafactor import adafactor_step
from boost_ext.ops.apollo import apollo_step
from boost_ext.ops.arguments import Array, Arrays, Tensors, empty_like, integer, like_theirs, number, on_device
from boost_ext.ops.clipping import adaptive_clip, clip_by_global_norm
from boost_ext.ops.curvature import *  # noqa: F403
from boost_ext.ops.curvature import __all__ as _CURVATURE
from boost_ext.ops.dimension_reduction import *  # noqa: F403
from boost_ext.ops.dimension_reduction import __all__ as _DIMENSION_REDUCTION
from boost_ext.ops.finiteness import FiniteReport, TensorReport, tensor_statistics, unscale_and_check
from boost_ext.ops.galore import galore_step
from boost_ext.ops.lars import lars_ratios
from boost_ext.ops.muon import muon_step
from boost_ext.ops.newer_optimizer_steps import *  # noqa: F403
from boost_ext.ops.newer_optimizer_steps import __all__ as _NEWER_STEPS
from boost_ext.ops.optimizer_state import dequantize_state, quantize_state
from boost_ext.ops.optimizer_steps import *  # noqa: F403
from boost_ext.ops.optimizer_steps import __all__ as _STEPS
from boost_ext.ops.orthogonalization import orthogonalize
from boost_ext.ops.projection_codes import dequantize_projection, quantize_projection
from boost_ext.ops.random_masks import dropout

__all__ = [
    "FiniteReport",
    "TensorReport",
    "accumulate",
    "adafactor_step",
    "adaptive_clip",
    "adasum_combine",
    "adasum_dots",
    "adasum_pair",
    "apollo_step",
    "centralize",
    "clip_by_global_norm",
    "dequantize_projection",
    "dequantize_state",
    "dropout",
    "ema_update",
    "galore_step",
    "global_norm",
    "lars_ratios",
    "loss_scale_update",
    "muon_step",
    "orthogonalize",
    "quantize_projection",
    "quantize_state",
    "tensor_statistics",
    "unscale_and_check",
    *_CURVATURE,
    *_DIMENSION_REDUCTION,
    *_NEWER_STEPS,
    *_STEPS,
]


def adasum_dots(a: Arrays, b: Arrays, out: Array | None = None) -> Array:
    """The dot products that the adaptive sum needs: ``(T, 3)`` float64 with ``<a,b>, |a|^2, |b|^2`` for each tensor.

    A tensor that is split over ranks has the sum of its parts' rows.

    Args:
        a: tensors.
        b: tensors of the same sizes and dtypes.
        out: ``(T, 3)`` float64; if None a new array where ``a`` is: a PyTorch tensor if ``a`` are some, else NumPy's or
            a device's.

    On another order of elements than C order, sums run along the memory: their last bits may differ.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> print(ops.adasum_dots([np.float32([2, 0])], [np.float32([2, 2])]))
        [[4. 4. 8.]]
    """
    result = _core.adasum_dots(a, b, out)
    return result if out is not None else like_theirs(result, a)


def adasum_combine(a: Tensors, b: Tensors, dots: Array, out: Tensors | None = None) -> Tensors:
    """Combine ``a`` and ``b`` with the coefficients that ``dots`` (from :func:`adasum_dots`) give.

    ``out = (1 - <a,b> / (2 |a|^2)) a + (1 - <a,b> / (2 |b|^2)) b``; see :func:`adasum_pair`.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> a, b = [np.float32([2, 0])], [np.float32([2, 2])]
        >>> dots = ops.adasum_dots(a, b)  # over ranks: the sum of the parts' rows
        >>> print(ops.adasum_combine(a, b, dots)[0])
        [2.5 1.5]
    """
    if out is None:
        out = empty_like("adasum_combine", a)
    result: Tensors = _core.adasum_combine(a, b, dots, out)
    return result


def adasum_pair(a: Tensors, b: Tensors, out: Tensors | None = None) -> Tensors:
    """The adaptive sum of two gradients, tensor by tensor (Maleki et al., MLSys 2021, eq. 3).

    ``out = (1 - <a,b> / (2 |a|^2)) a + (1 - <a,b> / (2 |b|^2)) b``. Orthogonal gradients add, parallel ones average,
    and a zero tensor leaves the other one as it is. Dot products in float64.

    Args:
        a: tensors.
        b: tensors of the same sizes and dtypes.
        out: tensors like ``a``; may be ``a`` or ``b`` themselves. If None and ``a`` are NumPy arrays, PyTorch tensors
            or on a device: new ones like these.

    Returns:
        ``out``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> orthogonal = ops.adasum_pair([np.float32([2, 0])], [np.float32([0, 2])])
        >>> parallel = ops.adasum_pair([np.float32([2, 0])], [np.float32([4, 0])])
        >>> print(orthogonal[0], parallel[0])
        [2. 2.] [3. 0.]
    """
    if out is None:
        out = empty_like("adasum_pair", a)
    result: Tensors = _core.adasum_pair(a, b, out)
    return result


@overload
def global_norm(tensors: Arrays, *, out: None = None) -> float: ...
@overload
def global_norm(tensors: Arrays, *, out: Tensors) -> Tensors: ...
def global_norm(tensors: Arrays, *, out: Array | None = None) -> Any:
    """The Euclidean norm of all elements of all tensors: ``sqrt(sum(x**2))``, summed in float64.

    Of half precision, four squares at a time may be summed in float32 first: the norm is right within 2**-23 of itself.
    It is inf or nan exactly when some element is. With `out`, one float64, it is written there and `out` is returned;
    of tensors on a device it is a new array like that without.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> ops.global_norm([np.float32([3, 0]), np.float32([4])])
        5.0
    """
    return _core.global_norm(tensors, out)


def centralize(grads: Tensors, out: Tensors | None = None) -> Tensors:
    """Gradient centralization: subtract from each output channel its mean (Yong et al., ECCV 2020, eq. 1).

    The first axis is the output channel, as in Dense and Conv2d. Tensors with fewer than two axes stay what they are.
    ``out``, like the gradients in number, sizes and dtypes, is written instead of them; they may share memory then.

    Returns:
        ``out``; without it ``grads``, which are written in place.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> print(ops.centralize([np.float32([[1, 2, 3], [4, 4, 7]])])[0])
        [[-1.  0.  1.]
         [-1. -1.  2.]]
    """
    if out is None:
        _core.centralize_in_place(grads)
        return grads
    _core.centralize(grads, out)
    return out


def accumulate(accumulators: Tensors, grads: Arrays, factor: float, first: bool = False) -> Tensors:
    """Add scaled gradients to accumulators: ``accumulators = (0 if first else accumulators) + factor * grads``.

    Gradient accumulation over N micro-batches: with ``factor = 1 / (loss scale * N)`` and ``first`` in the first of N
    calls, the accumulators hold the mean of the unscaled gradients after the last. One pass over both lists.

    Args:
        accumulators: float32 tensors, written. With ``first`` their old values are not read: nan and inf vanish, and
            nobody needs to clear them. They overlap neither each other nor ``grads``.
        grads: tensors of the same sizes. The same tensor may be listed more than once.
        factor: finite in float32.
        first: overwrite instead of add.

    Returns:
        ``accumulators``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> sums = [np.empty(2, np.float32)]
        >>> for i, grad in enumerate([np.float32([1, 2]), np.float32([3, 6])]):
        ...     _ = ops.accumulate(sums, [grad], 1 / 2, first=i == 0)
        >>> print(sums[0])
        [2. 4.]
    """
    _core.accumulate(accumulators, grads, number("accumulate", "factor", factor), bool(first))
    return accumulators


def ema_update(averages: Tensors, weights: Arrays, decay: float) -> Tensors:
    """Exponential moving averages: ``averages = averages + (1 - decay) * (weights - averages)``, in place.

    The average of a network's weights over about ``1 / (1 - decay)`` steps, which evaluates better than the last ones
    (Polyak & Juditsky 1992; Tarvainen & Valpola, NeurIPS 2017, section 2). One pass over both lists.

    Args:
        averages: float32 tensors, written. They overlap neither each other nor ``weights``.
        weights: tensors of the same sizes.
        decay: from 0 (copy the weights) to 1 (leave the averages). ``1 - decay`` is rounded once, to float32.

    Returns:
        ``averages``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> print(ops.ema_update([np.float32([0, 0])], [np.float32([1, 2])], 0.75)[0])
        [0.25 0.5 ]
    """
    _core.ema_update(averages, weights, number("ema_update", "decay", decay))
    return averages


def loss_scale_update(
    scale: Array,
    counters: Array,
    overflow: bool | Array,
    *,
    factor: float = 2.0,
    window: int = 2000,
    max_scale: float = 2.0**64,
) -> None:
    """Adapt a dynamic loss scale after a step, in place (Micikevicius et al., ICLR 2018, section 3.2).

    On overflow the scale is divided by ``factor`` (not below 1); after ``window`` steps without one it is multiplied by
    it (not above ``max_scale``).

    Args:
        scale: one float32.
        counters: ``(3,)`` int32: iteration (from 1), iteration of the last change, consecutive overflows.
        overflow: whether this step overflowed. On a device also one float32 there, as :func:`unscale_and_check` gives
            it: other than 0 if so.
        factor: finite and > 1.
        window: >= 1.
        max_scale: finite and >= 1.

    Raises:
        RuntimeError: at the 1001st overflow in a row; not on a device, where nobody waits to be told: ``counters[2]``
            is how many there were. Nor is the scale checked there.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> scale, counters = np.float32([1024]), np.zeros(3, np.int32)
        >>> ops.loss_scale_update(scale, counters, overflow=True)
        >>> print(scale)
        [512.]
    """
    op = "loss_scale_update"
    growth, bound = number(op, "factor", factor), number(op, "max_scale", max_scale)
    found = overflow if on_device(overflow) else bool(overflow)
    _core.loss_scale_update(scale, counters, found, growth, integer(op, "window", window), bound)
