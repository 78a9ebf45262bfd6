"""Muon on arrays; re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from collections.abc import Sequence

from boost_ext import _core
from boost_ext.ops.arguments import Array, Arrays, Numbers, flags, integer, number, numbers, switch, with_gaps

__all__ = ["muon_step"]

_OP = "muon_step"
_ADJUSTMENTS = ("original", "match_rms_adamw")


def muon_step(
    params: Arrays,
    grads: Arrays,
    moments1: Arrays,
    moments2: Array | Sequence[Array | None] | None = None,
    *,
    lr: Numbers,
    step: int,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
    eps: float = 1e-7,
    adjust_lr_fn: str = "original",
    beta1: float = 0.9,
    beta2: float = 0.999,
    adamw_eps: float = 1e-8,
    weight_decay: Numbers = 0.0,
    inv_scale: float = 1.0,
    ratio: Numbers = 1.0,
    centralize: bool | Sequence[bool] = False,
    allow_tf32: bool = False,
    masters: Array | Sequence[Array | None] | None = None,
    skip: Array | None = None,
) -> None:
    """One step of Muon over all tensors of a network, in place and in a single native call.

    Matrices move along their orthogonalized momentum. With ``u = inv_scale * ratio * grad`` (minus its mean over all
    axes but the first if `centralize`):

    * ``m = momentum * m + (1 - momentum) * u``; ``d = momentum * m + (1 - momentum) * u`` with `nesterov`, else ``m``
    * ``O`` is ``d`` with its singular values brought near 1, by `ns_steps` of :func:`orthogonalize`
    * ``w = (1 - lr * weight_decay) * w - lr * s * O`` with ``s = √max(1, rows / columns)``, or with `adjust_lr_fn`
      "match_rms_adamw" ``0.2 √max(rows, columns)``

    Tensors that have an array in `moments2` make the step of :func:`adamw_step` in the same call. Embeddings and the
    last layer should be among them. Arithmetic is float32, but on a CPU the products of the iteration take the
    precision of :func:`boost_ext.set_float32_matmul_precision`. One inf or nan in a gradient makes all of its matrix
    nan.

    Source: Jordan et al., *Muon: an optimizer for hidden layers in neural networks*, 2024; "match_rms_adamw": Liu et
    al., *Muon is scalable for LLM training*, 2025, equation 4.

    Args:
        params: tensors, written; float32, float16 or bfloat16. One of more than two axes, such as a convolution, is the
            matrix of its first axis by all others.
        grads: tensors of the same sizes.
        moments1: float32 tensors of the same sizes, written: m.
        moments2: for each tensor that AdamW steps its second moment, float32, written; None for the matrices. Default:
            all are matrices.
        lr: >= 0, for all tensors or for each.
        step: the number of this step, from 1, for AdamW.
        momentum: in [0, 1).
        nesterov: whether the momentum looks a step ahead.
        ns_steps: iterations of the orthogonalization, >= 0.
        eps: added to the norm of a matrix, >= 0.
        adjust_lr_fn: "original", or "match_rms_adamw": a step as long as AdamW's, for its learning rates and decays.
        beta1, beta2, adamw_eps: of AdamW; in [0, 1), in [0, 1) and > 0.
        weight_decay: decoupled, >= 0, for all tensors or for each.
        inv_scale: 1 / loss scale.
        ratio: a factor on each gradient.
        centralize: gradient centralization; tensors of one axis have none.
        allow_tf32: on CUDA round the factors of large matrices' products to TF32, which keeps 11 bits of float32's 24
            (bfloat16 has 8): several times as fast on tensor cores. For the CPU nothing changes.
        masters: as for the other steps, see :class:`StepOptions`.
        skip: one float32, where the tensors are: nothing is written if it is not 0. Default: none.

    Raises:
        TypeError: for a dtype, or an argument of another type.
        ValueError: if an argument is out of range, sizes differ, written tensors overlap, or a tensor of fewer than two
            axes has nothing in `moments2`.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, bias = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
        >>> grads = [np.float32([[3, 0, 0], [0, 400, 0]]), np.float32([1, -1])]
        >>> state = [np.zeros_like(w), np.zeros_like(bias)], [None, np.zeros_like(bias)]
        >>> ops.muon_step([w, bias], grads, *state, lr=0.1, step=1)
        >>> print(w.round(2), bias.round(2))
        [[-0.08  0.    0.  ]
         [ 0.   -0.07  0.  ]] [-0.1  0.1]
    """
    if not isinstance(adjust_lr_fn, str):
        raise TypeError(f"{_OP}: adjust_lr_fn must be a string, got {type(adjust_lr_fn).__name__}")
    if adjust_lr_fn not in _ADJUSTMENTS:
        raise ValueError(f"{_OP}: adjust_lr_fn must be one of {', '.join(_ADJUSTMENTS)}, got {adjust_lr_fn!r}")
    t = integer(_OP, "step", step)
    if not 1 <= t < 2**63:
        raise ValueError(f"{_OP}: step must be >= 1 and < 2**63, got {t}")
    iterations = integer(_OP, "ns_steps", ns_steps)
    if not 0 <= iterations <= 100:
        raise ValueError(f"{_OP}: ns_steps must be >= 0 and <= 100, got {iterations}")
    hyper = [
        number(_OP, "momentum", momentum),
        switch(_OP, "nesterov", nesterov),
        float(iterations),
        number(_OP, "eps", eps),
        float(adjust_lr_fn == "match_rms_adamw"),
        switch(_OP, "allow_tf32", allow_tf32),
    ]
    adamw = [number(_OP, k, v) for k, v in (("beta1", beta1), ("beta2", beta2), ("adamw_eps", adamw_eps))]
    _core.muon_step(
        params,
        masters if masters is None else with_gaps(_OP, "masters", masters, params),
        grads,
        moments1,
        with_gaps(_OP, "moments2", moments2, params),
        hyper,
        adamw,
        number(_OP, "inv_scale", inv_scale),
        t,
        numbers(_OP, "lr", lr),
        numbers(_OP, "weight_decay", weight_decay),
        numbers(_OP, "ratio", ratio),
        flags(_OP, "centralize", centralize),
        skip,
    )
