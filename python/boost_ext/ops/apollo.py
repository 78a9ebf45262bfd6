"""APOLLO on arrays; re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from collections.abc import Sequence

from boost_ext.ops.arguments import Array, Arrays, Numbers, number
from boost_ext.ops.projected import projected_step

__all__ = ["apollo_step"]

_OP = "apollo_step"
_SCALE_TYPES = ("channel", "tensor")


def apollo_step(
    params: Arrays,
    grads: Arrays,
    moments1: Arrays,
    moments2: Arrays,
    norms: Array | Sequence[Array | None] | None,
    *,
    lr: Numbers,
    step: int,
    scale_type: str = "channel",
    scale: float = 1.0,
    norm_growth: float | None = 1.01,
    update_proj_gap: int = 200,
    seed: int = 0,
    tensor_numbers: Sequence[int] | None = None,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: Numbers = 0.0,
    inv_scale: float = 1.0,
    ratio: Numbers = 1.0,
    centralize: bool | Sequence[bool] = False,
    masters: Array | Sequence[Array | None] | None = None,
    skip: Array | None = None,
) -> None:
    """One step of APOLLO over all tensors of a network, in place and in a single native call.

    Matrices step along their gradient, whose columns are scaled as Adam scales a random projection of it. With
    ``u = inv_scale * ratio * grad`` (minus its mean over all axes but the first if `centralize`), for a matrix of
    at most as many rows as columns (for others with rows and columns exchanged):

    * ``R = P @ u`` with ``P`` of `rank` x rows, a random sign in each column and 0 elsewhere
    * ``A = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)``, with the averages m and v of R and R²
    * ``d = sqrt(scale) * u * s`` with ``s = |A| / |R|`` of each column, or with `scale_type` "tensor" of the matrix
    * where ``|d|`` is more than `norm_growth` times that of the last step, d becomes as much shorter
    * ``w = (1 - lr * weight_decay) * w - lr * d``

    P is never stored: a step draws it from `seed`, from the number of the tensor, and from
    ``(step - 1) // update_proj_gap``. Tensors that have no array in `norms` make the step of :func:`adamw_step` in the
    same call. Arithmetic is float32.

    "tensor" with rank 1 and a `scale` of 128 is APOLLO-Mini. As in the authors' ``apollo-torch``, the root of `scale`
    multiplies the step.

    Source: Zhu et al., *APOLLO: SGD-like memory, AdamW-level performance*, 2024, algorithm 1.

    Args:
        params: tensors, written; float32, float16 or bfloat16. One of more than two axes, such as a convolution, is the
            matrix of its first axis by all others.
        grads: tensors of the same sizes.
        moments1, moments2: float32 tensors, written: m and v. Those of a matrix have (rank, columns) elements, or
            (rows, rank) where it has more rows than columns: their sizes say the rank.
        norms: for each matrix one float32, written: the norm of d, 0 before the first step; None for tensors that AdamW
            steps. None instead of a list: AdamW steps all.
        lr: >= 0, for all tensors or for each.
        step: the number of this step, from 1.
        scale_type: "channel" or "tensor".
        scale: >= 0.
        norm_growth: >= 1; None for no limit.
        update_proj_gap: steps with the same P, >= 1.
        seed: >= 0.
        tensor_numbers: what makes the P of each tensor its own, >= 0. Default: their places in the list.
        beta1, beta2, eps: of Adam, for all tensors; in [0, 1), in [0, 1) and > 0.
        weight_decay: decoupled, >= 0, for all tensors or for each.
        inv_scale: 1 / loss scale.
        ratio: a factor on each gradient.
        centralize: gradient centralization; tensors of one axis have none.
        masters: as for the other steps, see :class:`StepOptions`.
        skip: one float32: nothing is written if it is not 0. Default: none.

    Raises:
        TypeError: for a dtype, or an argument of another type.
        ValueError: if an argument is out of range, sizes differ, written tensors overlap, or arrays are on several
            devices.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, bias = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
        >>> grads = [np.float32([[3, 0, 0], [0, 400, 0]]), np.float32([1, -1])]
        >>> m, v = ([np.zeros((1, 3), np.float32), np.zeros_like(bias)] for _ in range(2))
        >>> norms = [np.zeros(1, np.float32), None]
        >>> ops.apollo_step([w, bias], grads, m, v, norms, lr=0.1, step=1)
        >>> print(np.sign(w), bias.round(2))
        [[-1.  0.  0.]
         [ 0. -1.  0.]] [-0.1  0.1]
    """
    if not isinstance(scale_type, str):
        raise TypeError(f"{_OP}: scale_type must be a string, got {type(scale_type).__name__}")
    if scale_type not in _SCALE_TYPES:
        raise ValueError(f"{_OP}: scale_type must be one of {', '.join(_SCALE_TYPES)}, got {scale_type!r}")
    limit = 0.0 if norm_growth is None else number(_OP, "norm_growth", norm_growth)
    if norm_growth is not None and not limit >= 1:
        raise ValueError(f"{_OP}: norm_growth must be >= 1, or None, got {norm_growth}")
    projected_step(
        _OP,
        [float(scale_type == "tensor"), number(_OP, "scale", scale), limit],
        {"params": params, "grads": grads, "norms": norms, "moments1": moments1, "moments2": moments2},
        lr=lr,
        step=step,
        update_proj_gap=update_proj_gap,
        seed=seed,
        tensor_numbers=tensor_numbers,
        of_adam={"beta1": beta1, "beta2": beta2, "eps": eps},
        weight_decay=weight_decay,
        inv_scale=inv_scale,
        ratio=ratio,
        centralize=centralize,
        masters=masters,
        skip=skip,
    )
