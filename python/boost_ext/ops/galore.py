"""GaLore on arrays; re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from collections.abc import Sequence

from boost_ext.ops.arguments import Array, Arrays, Numbers, number
from boost_ext.ops.projected import projected_step

__all__ = ["galore_step"]

_OP = "galore_step"


def galore_step(
    params: Arrays,
    grads: Arrays,
    projections: Array | Sequence[Array | None] | None,
    moments1: Arrays,
    moments2: Arrays,
    *,
    lr: Numbers,
    step: int,
    scale: float = 0.25,
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
    """One step of GaLore over all tensors of a network, in place and in a single native call.

    Matrices are stepped by Adam in the space of the leading singular vectors of their gradient. With
    ``u = inv_scale * ratio * grad`` (minus its mean over all axes but the first if `centralize`), for a matrix of
    at most as many rows as columns:

    * where ``(step - 1) % update_proj_gap == 0``, ``P`` becomes the leading left singular vectors of u, in its columns
    * ``R = P.T @ u``
    * ``A = m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)``, with the averages m and v of R and R²
    * ``w = (1 - lr * weight_decay) * w - lr * scale * P @ A``

    For a matrix of more rows than columns, P has its right singular vectors, ``R = u @ P``, and the step is along
    ``A @ P.T``. Tensors that have no array in `projections` make the step of :func:`adamw_step` in the same call.
    Arithmetic is float32; the factors of the products R and P A have the precision of
    :func:`boost_ext.set_float32_matmul_precision`. Arrays on the CPU only.

    P is found by randomized subspace iteration, with a fixed number of iterations and the same bits for any number of
    threads. It is orthonormal for any finite gradient. On white noise it keeps 97 % or more of what the exact vectors
    keep of ``|u|**2``, otherwise nearly all.

    Source: Zhao et al., *GaLore: memory-efficient LLM training by gradient low-rank projection*, 2024, algorithm 2;
    Halko, Martinsson & Tropp, *Finding structure with randomness*, 2011, algorithms 4.4 and 5.3.

    Args:
        params: tensors, written; float32, float16 or bfloat16. One of more than two axes, such as a convolution, is the
            matrix of its first axis by all others.
        grads: tensors of the same sizes.
        projections: for each matrix a float32 array, written: P, of (shorter side, rank) elements, which says the rank;
            None for tensors that AdamW steps. None instead of a list: AdamW steps all.
        moments1, moments2: float32 tensors, written: m and v. Those of a matrix have (rank, columns) elements, or
            (rows, rank) where it has more rows than columns.
        lr: >= 0, for all tensors or for each.
        step: the number of this step, from 1. A training that starts at a step without a new P needs that of its state.
        scale: of the step, >= 0.
        update_proj_gap: steps with the same P, >= 1.
        seed: of the start of the iteration, >= 0.
        tensor_numbers: what makes the start of each tensor its own, >= 0. Default: their places in the list.
        beta1, beta2, eps: of Adam, for all tensors; in [0, 1), in [0, 1) and > 0.
        weight_decay: decoupled, >= 0, for all tensors or for each.
        inv_scale: 1 / loss scale.
        ratio: a factor on each gradient.
        centralize: gradient centralization; tensors of one axis have none.
        masters: as for the other steps, see :class:`StepOptions`.
        skip: one float32: nothing is written if it is not 0. Default: none.

    Raises:
        TypeError: for a dtype, or an argument of another type.
        ValueError: if an argument is out of range, the rank is larger than the shorter side, sizes differ, written
            tensors overlap, or arrays are not on the CPU.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, bias = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
        >>> grads = [np.float32([[3, 0, 0], [0, 400, 0]]), np.float32([1, -1])]
        >>> P = np.zeros((2, 1), np.float32)
        >>> m, v = ([np.zeros((1, 3), np.float32), np.zeros_like(bias)] for _ in range(2))
        >>> ops.galore_step([w, bias], grads, [P, None], m, v, lr=0.1, step=1)
        >>> print(P.T.round(3) + 0, w[1].round(3) + 0, bias.round(2))
        [[0. 1.]] [ 0.    -0.025  0.   ] [-0.1  0.1]
    """
    projected_step(
        _OP,
        [number(_OP, "scale", scale)],
        {"params": params, "grads": grads, "projections": projections, "moments1": moments1, "moments2": moments2},
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
