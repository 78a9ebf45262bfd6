"""One step of an optimizer over a list of tensors, each a single native call; re-exported by :mod:`boost_ext.ops`.

Every function changes ``params`` and its state in place and returns None. What they share:

* ``params``, ``grads`` and each list of state: tensors (see :mod:`boost_ext.ops`) of the same sizes. Parameters and
  gradients may be float32, float16 or bfloat16, state is float32. Arithmetic is float32. State of
  :func:`momentum_step`, :func:`adam_step` without `max_moments2`, :func:`adam_weight_decay_step`, :func:`adamw_step`,
  :func:`lamb_step`, :func:`lion_step` and :func:`nadamw_step` may also be bfloat16, or uint8 codes of
  :func:`quantize_state`, tensor by tensor. Such state is rounded at random, so that its mean is kept.
* ``lr`` (Union[float, Sequence[float]]): the learning rate, >= 0, or one for each tensor.
* ``step`` (int): the number of this step, from 1, where the rule corrects a bias, and with state that is not float32.
* ``cautious`` (bool), where a step has it: the update, without the weight decay, is 0 where its sign is not that of u
  (Liang et al. 2024, *Cautious optimizers*). The others are not scaled up, as they are in the paper. Default: False.

and, as further keywords, :class:`StepOptions`.

The numbers that change from step to step may also be arrays: ``lr``, `weight_decay` and `ratio` float32 of one element
or one for each tensor, `inv_scale` and `skip` float32 (1,), ``step`` int32 (1,). On a GPU they lie where the tensors
are, and only the kernels read them: nobody waits, a captured graph of steps takes what they hold at each replay, and
nobody checks them. On the CPU they are checked as numbers are. NumPy arrays of any dtype are numbers like lists, where
there may be one for each tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from boost_ext import _core
from boost_ext.arguments import unknown_argument
from boost_ext.ops.arguments import (
    Array,
    Arrays,
    Numbers,
    flags,
    integer,
    number,
    number_of_step,
    scalar,
    switch,
    values,
)
from boost_ext.ops.optimizer_state import scales_beside

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "StepOptions",
    "adagrad_step",
    "adam_step",
    "adam_weight_decay_step",
    "adamw_step",
    "centered_rmsprop_step",
    "ftrl_step",
    "lamb_step",
    "momentum_step",
    "proximal_adagrad_step",
    "rmsprop_step",
    "sgd_step",
]


_SWITCHES = frozenset({"cautious", "nesterov", "use_nesterov", "update_slots"})


class StepOptions(TypedDict, total=False):
    """What every step takes beside its own arguments. The gradient that a rule sees is

    ``u = inv_scale * ratio * grad + weight_decay * param``, minus its mean over all axes but the first if centralized.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, grad = np.ones(2, np.float32), np.float32([1024, 0])
        >>> ops.sgd_step([w], [grad], lr=0.5, inv_scale=1 / 1024, weight_decay=0.1)
        >>> print(w)
        [0.45 0.95]
        >>> found = ops.unscale_and_check([np.float32([np.inf])], 1.0, out=np.empty(1, np.float32))
        >>> ops.sgd_step([w], [grad], lr=0.5, skip=found)  # writes nothing
    """

    weight_decay: Numbers | Array
    """L2 penalty, >= 0, or one for each tensor; AdamWeightDecay, AdamW, Lamb, Lion, NAdamW, AdEMAMix,
    Adan and Schedule-Free AdamW decouple it. Default: 0."""
    inv_scale: float | Array
    """1 / loss scale, times ``min(1, max_norm / norm)`` to clip by the global norm. Default: 1."""
    ratio: Numbers | Array
    """A factor on the gradient of each tensor, such as LARS's. Default: 1."""
    centralize: bool | Sequence[bool]
    """Gradient centralization; tensors of one axis have none. Default: False."""
    masters: Array | Sequence[Array | None] | None
    """For each half-precision parameter its float32 master copy, in place; None for float32 parameters. A parameter
    that is not what its master rounds to was set from outside, and the master takes its value.

    A split master costs less: int16 or int8 beside a bfloat16 parameter, the residual, in place. The parameter is the
    upper half of the master and the residual the lower one, so int16 keeps float32 bit for bit, and int8 its first 16
    bits of precision. A residual begins with 0. Who sets the parameter sets its residual to 0. Default: none."""
    indices: Array | None
    """int32 (rows,): `params`, `masters` and states are one tensor each, not in lists, and ``grads`` holds only these
    rows of its gradient. Rows that are listed twice are summed. Other rows, with their state, stay as they are.
    On a GPU nobody sees indices out of range, and their rows are ignored. Default: all rows. Not with uint8 state."""
    scales: Sequence[Arrays]
    """For each state a list with the scales of its uint8 tensors, float32 (ceil(size / 256),), in place; None for
    tensors that are not uint8. Default: none."""
    skip: Array | None
    """float32 (1,): where it is not 0, nothing at all is written. What :func:`boost_ext.ops.unscale_and_check` leaves
    in `out`. Default: none."""
    seed: int
    """Of the random bits that bfloat16 and uint8 state is rounded with, together with `step`, the number of the tensor
    and of the element; >= 0. Default: 0."""


def _masters(op: str, masters: Any) -> Any:
    """As the native op takes them: empty beside float32 parameters."""
    if not isinstance(masters, (list, tuple)):
        return masters
    if not masters:
        raise ValueError(f"{op}: masters must hold one array, or None, for each tensor, got 0")
    return [np.empty(0, np.float32) if m is None else m for m in masters]


def one_step(
    rule: str,
    params: Arrays,
    grads: Arrays,
    state: Sequence[Arrays],
    hyper: dict[str, Any],
    lr: Numbers | Array,
    options: StepOptions,
    *,
    step: int | Array | None = None,
    first: Any = False,
) -> None:
    op = f"{rule}_step"
    unknown = set(options) - StepOptions.__optional_keys__
    if unknown:
        known = ("lr", "step", *hyper, *sorted(StepOptions.__optional_keys__))
        raise TypeError(unknown_argument(op, min(unknown), known))
    t = number_of_step(op, step)
    seed = integer(op, "seed", options.get("seed", 0))
    if not 0 <= seed < 2**63:
        raise ValueError(f"{op}: seed must be >= 0 and < 2**63, got {seed}")
    settings = (
        rule,
        [switch(op, key, v) if key in _SWITCHES else number(op, key, v) for key, v in hyper.items()],
        scalar(op, "inv_scale", options.get("inv_scale", 1.0)),
        t,
        values(op, "lr", lr),
        values(op, "weight_decay", options.get("weight_decay", 0.0)),
        values(op, "ratio", options.get("ratio", 1.0)),
        flags(op, "centralize", options.get("centralize", False)),
        flags(op, "first", first),
        seed,
        options.get("skip"),
    )
    masters = options.get("masters")
    indices = options.get("indices")
    if indices is None:
        scales = scales_beside(op, options.get("scales"))
        _core.optimizer_step(params, _masters(op, masters), grads, list(state), scales, *settings)
    else:
        _core.optimizer_step_rows(params, masters, indices, grads, list(state), *settings)


def sgd_step(
    params: Arrays,
    grads: Arrays,
    accum: Arrays | None = None,
    *,
    lr: Numbers | Array,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    first: bool | Sequence[bool] = False,
    **options: Unpack[StepOptions],
) -> None:
    """``a = momentum * a + (1 - dampening) * u``; ``w -= lr * a``, or with `nesterov` ``lr * (u + momentum * a)``.

    In the first step of a tensor (`first`) ``a = u``. Without `accum`, which takes a `momentum` of 0: ``w -= lr * u``.

    Source: Sutskever et al. 2013, *On the importance of initialization and momentum in deep learning*.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w = np.ones(2, np.float32)
        >>> ops.sgd_step([w], [np.float32([1, -1])], lr=0.5)
        >>> print(w)
        [0.5 1.5]
    """
    state = [] if accum is None else [accum]
    hyper = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    one_step("sgd", params, grads, state, hyper, lr, options, first=first)


def momentum_step(
    params: Arrays,
    grads: Arrays,
    moments: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array | None = None,
    momentum: float = 0.9,
    use_nesterov: bool = False,
    cautious: bool = False,
    **options: Unpack[StepOptions],
) -> None:
    """``a = momentum * a + u``; ``w -= lr * a``, or with `use_nesterov` ``w -= lr * (u + momentum * a)``.

    Source: Sutskever et al. 2013; ``mindspore.nn.Momentum``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, moment = np.ones(2, np.float32), np.zeros(2, np.float32)
        >>> for _ in range(2):
        ...     ops.momentum_step([w], [np.float32([1, -1])], [moment], lr=0.25, momentum=0.5)
        >>> print(w, moment)
        [0.375 1.625] [ 1.5 -1.5]
    """
    hyper = {"momentum": momentum, "use_nesterov": use_nesterov, "cautious": cautious}
    one_step("momentum", params, grads, [moments], hyper, lr, options, step=step)


def adam_step(
    params: Arrays,
    grads: Arrays,
    moments1: Arrays,
    moments2: Arrays,
    max_moments2: Arrays | None = None,
    *,
    lr: Numbers | Array,
    step: int | Array,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    use_nesterov: bool = False,
    cautious: bool = False,
    **options: Unpack[StepOptions],
) -> None:
    """``m = b1 m + (1-b1) u``; ``v = b2 v + (1-b2) u²``; ``w -= lr √(1-b2^t)/(1-b1^t) · m / (√v + eps)``.

    `use_nesterov` puts ``b1 m + (1-b1) u`` in the place of m; `max_moments2` makes it AMSGrad. `eps` stands beside the
    uncorrected root, as in ``mindspore.nn.Adam``.

    Source: Kingma and Ba 2015, *Adam: a method for stochastic optimization*, the form at the end of section 2; Reddi
    et al. 2018 (AMSGrad).

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, m, v = np.ones(2, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32)
        >>> ops.adam_step([w], [np.float32([3, -0.1])], [m], [v], lr=0.25, step=1)
        >>> print(w.round(3))
        [0.75 1.25]
    """
    state = [moments1, moments2] + ([] if max_moments2 is None else [max_moments2])
    hyper = {"beta1": beta1, "beta2": beta2, "eps": eps, "use_nesterov": use_nesterov, "cautious": cautious}
    one_step("adam", params, grads, state, hyper, lr, options, step=step)


def adam_weight_decay_step(
    params: Arrays,
    grads: Arrays,
    moments1: Arrays,
    moments2: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array | None = None,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-6,
    cautious: bool = False,
    **options: Unpack[StepOptions],
) -> None:
    """m and v as :func:`adam_step`; ``w -= lr * (m / (√v + eps) + weight_decay * w)``. No bias correction.

    Source: ``mindspore.nn.AdamWeightDecay``; decoupled decay: Loshchilov and Hutter 2019.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, m, v = np.ones(2, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32)
        >>> ops.adam_weight_decay_step([w], [np.float32([3, -0.1])], [m], [v], lr=0.01, weight_decay=0.5)
        >>> print(w.round(3))
        [0.963 1.027]
    """
    hyper = {"beta1": beta1, "beta2": beta2, "eps": eps, "cautious": cautious}
    one_step("adam_weight_decay", params, grads, [moments1, moments2], hyper, lr, options, step=step)


def adamw_step(
    params: Arrays,
    grads: Arrays,
    moments1: Arrays,
    moments2: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    cautious: bool = False,
    **options: Unpack[StepOptions],
) -> None:
    """m and v as :func:`adam_step`; ``w -= lr * (m/(1-b1^t) / (√(v/(1-b2^t)) + eps) + weight_decay * w)``.

    Adam with decoupled weight decay and bias correction, as ``torch.optim.AdamW``; `eps` stands beside the corrected
    root. Here `weight_decay` has the default 0.

    Source: Loshchilov and Hutter 2019, *Decoupled weight decay regularization*, algorithm 2.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, m, v = np.ones(2, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32)
        >>> ops.adamw_step([w], [np.float32([1, -1])], [m], [v], lr=0.5, step=1, weight_decay=0.1)
        >>> print(w.round(3))
        [0.45 1.45]
    """
    hyper = {"beta1": beta1, "beta2": beta2, "eps": eps, "cautious": cautious}
    one_step("adamw", params, grads, [moments1, moments2], hyper, lr, options, step=step)


def lamb_step(
    params: Arrays,
    grads: Arrays,
    moments1: Arrays,
    moments2: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-6,
    **options: Unpack[StepOptions],
) -> None:
    """``r = m/(1-b1^t) / (√(v/(1-b2^t)) + eps) + weight_decay * w``; ``w -= lr · ‖w‖/‖r‖ · r``, a tensor at a time.

    m and v as :func:`adam_step`. The ratio of the norms, in float64, is 1 where one of them is 0. Two sweeps over the
    tensors. `indices` is refused.

    Source: You et al. 2020, *Large batch optimization for deep learning: training BERT in 76 minutes*, algorithm 2.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, m, v = np.float32([3, 4]), np.zeros(2, np.float32), np.zeros(2, np.float32)
        >>> ops.lamb_step([w], [np.float32([1, 1])], [m], [v], lr=0.01, step=1)  # by 1 % of the norm of w
        >>> print(w.round(3))
        [2.965 3.965]
    """
    hyper = {"beta1": beta1, "beta2": beta2, "eps": eps}
    one_step("lamb", params, grads, [moments1, moments2], hyper, lr, options, step=step)


def adagrad_step(
    params: Arrays,
    grads: Arrays,
    accum: Arrays,
    *,
    lr: Numbers | Array,
    update_slots: bool = True,
    **options: Unpack[StepOptions],
) -> None:
    """``h += u²`` (unless `update_slots` is False); ``w -= lr * u / √h``, and no step where h is 0.

    Source: Duchi et al. 2011, *Adaptive subgradient methods*; ``mindspore.nn.Adagrad``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, squares = np.ones(2, np.float32), np.full(2, 3, np.float32)
        >>> ops.adagrad_step([w], [np.float32([1, -1])], [squares], lr=0.5)
        >>> print(w, squares)
        [0.75 1.25] [4. 4.]
    """
    one_step("adagrad", params, grads, [accum], {"update_slots": update_slots}, lr, options)


def proximal_adagrad_step(
    params: Arrays,
    grads: Arrays,
    accum: Arrays,
    *,
    lr: Numbers | Array,
    l1: float = 0.0,
    l2: float = 0.0,
    **options: Unpack[StepOptions],
) -> None:
    """``h += u²``; ``p = w - lr * u / √h``; ``w = sign(p) * max(|p| - lr * l1, 0) / (1 + lr * l2)``.

    Source: Duchi and Singer 2009, *Efficient learning using forward-backward splitting*.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, squares = np.float32([1, 0.25]), np.full(2, 3, np.float32)
        >>> ops.proximal_adagrad_step([w], [np.float32([1, 1])], [squares], lr=0.5, l1=0.25)
        >>> print(w)
        [0.625 0.   ]
    """
    one_step("proximal_adagrad", params, grads, [accum], {"l1": l1, "l2": l2}, lr, options)


def rmsprop_step(
    params: Arrays,
    grads: Arrays,
    mean_squares: Arrays,
    moments: Arrays,
    *,
    lr: Numbers | Array,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    **options: Unpack[StepOptions],
) -> None:
    """``s = decay * s + (1 - decay) * u²``; ``a = momentum * a + lr * u / √(s + epsilon)``; ``w -= a``.

    Source: Tieleman and Hinton 2012, lecture 6.5; ``mindspore.nn.RMSProp``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, squares, moment = np.ones(2, np.float32), np.ones(2, np.float32), np.zeros(2, np.float32)
        >>> ops.rmsprop_step([w], [np.float32([1, -1])], [squares], [moment], lr=0.25)
        >>> print(w.round(3))
        [0.75 1.25]
    """
    hyper = {"decay": decay, "momentum": momentum, "epsilon": epsilon}
    one_step("rmsprop", params, grads, [mean_squares, moments], hyper, lr, options)


def centered_rmsprop_step(
    params: Arrays,
    grads: Arrays,
    mean_grads: Arrays,
    mean_squares: Arrays,
    moments: Arrays,
    *,
    lr: Numbers | Array,
    decay: float = 0.9,
    momentum: float = 0.0,
    epsilon: float = 1e-10,
    **options: Unpack[StepOptions],
) -> None:
    """:func:`rmsprop_step` with the variance: ``g = decay * g + (1 - decay) * u`` and ``√(max(s - g², 0) + epsilon)``.

    Source: Graves 2013, *Generating sequences with recurrent neural networks*, equations 38-45.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, mean, squares, moment = np.float32([[1, 1], [0, 0], [1, 1], [0, 0]])
        >>> ops.centered_rmsprop_step([w], [np.float32([1, -1])], [mean], [squares], [moment], lr=0.25, decay=0.5)
        >>> print(w.round(3))
        [0.711 1.289]
    """
    hyper = {"decay": decay, "momentum": momentum, "epsilon": epsilon}
    one_step("centered_rmsprop", params, grads, [mean_grads, mean_squares, moments], hyper, lr, options)


def ftrl_step(
    params: Arrays,
    grads: Arrays,
    accum: Arrays,
    linear: Arrays,
    *,
    lr: Numbers | Array,
    l1: float = 0.0,
    l2: float = 0.0,
    lr_power: float = -0.5,
    **options: Unpack[StepOptions],
) -> None:
    """``n = h + u²``; ``z += u - (n^-p - h^-p) / lr * w``; ``h = n``;
    ``w = (sign(z) * l1 - z) / (n^-p / lr + 2 * l2)`` where ``|z| > l1``, else 0. p is `lr_power`, <= 0.

    With `lr` 0 the weights stay, and ``z += u``.

    Source: McMahan et al. 2013, *Ad click prediction: a view from the trenches*, algorithm 1.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, accum, linear = np.zeros(2, np.float32), np.full(2, 0.1, np.float32), np.zeros(2, np.float32)
        >>> ops.ftrl_step([w], [np.float32([3, 0.5])], [accum], [linear], lr=0.5, l1=1.0)
        >>> print(w.round(3))  # where the sum of gradients is below l1, the weight is 0
        [-0.331  0.   ]
    """
    hyper = {"l1": l1, "l2": l2, "lr_power": lr_power}
    one_step("ftrl", params, grads, [accum, linear], hyper, lr, options)
