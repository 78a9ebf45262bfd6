"""Matrices brought near orthogonal ones. Re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from boost_ext import _core
from boost_ext.ops.arguments import Arrays, Tensors, integer, number

__all__ = ["orthogonalize"]


def orthogonalize(matrices: Arrays, out: Tensors, *, steps: int = 5, eps: float = 1e-7) -> Tensors:
    """Matrices with their singular values brought near 1, by the Newton-Schulz iteration of Muon.

    ``X = M / (norm(M) + eps)``, then `steps` times ``A = X @ X.T; X = 3.4445 * X + (2.0315 * A @ A - 4.7750 * A) @ X``.
    After five steps singular values of at least about 1 % of the norm lie between 0.68 and 1.13. All matrices of a
    network go in one call. The products of symmetric matrices are computed by half, and a matrix of at least twice as
    many columns as rows, or rows as columns, is iterated on its Gram matrix. On a CPU products take the precision that
    :func:`boost_ext.set_float32_matmul_precision` sets.

    Source: Jordan et al., *Muon: an optimizer for hidden layers in neural networks*, 2024.

    Args:
        matrices: of any float dtype; each is a matrix of its first axis by all others.
        out: float32, of the sizes of `matrices`, written. An array of `matrices` may be its own result.
        steps: >= 0; 0 only divides by the norm.
        eps: finite and >= 0.

    Returns:
        ``out``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> gradient = np.float32([[3, 0, 0], [0, 4, 0]])
        >>> direction = ops.orthogonalize([gradient], [np.empty_like(gradient)])[0]
        >>> print(np.linalg.svd(direction, compute_uv=False).round(1))
        [1.1 0.7]
    """
    op = "orthogonalize"
    _core.orthogonalize(matrices, out, integer(op, "steps", steps), number(op, "eps", eps))
    return out
