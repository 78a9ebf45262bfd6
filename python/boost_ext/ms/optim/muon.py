"""Muon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import ParameterTuple

from boost_ext.ms.optim.arguments import named, non_negative, positive, recorded, require_bool, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.storage import state_like

__all__ = ["Muon"]

_ADJUSTMENTS = ("original", "match_rms_adamw")


class Muon(FusedOptimizer):
    r"""Momentum that is orthogonalized for matrices, and AdamW for all other parameters, in one native call.

    .. math::
        m_t = \mu m_{t-1} + (1-\mu) g, \quad d_t = \mu m_t + (1-\mu) g, \quad
        w_t = (1 - l \lambda) w_{t-1} - l s \operatorname{orth}(d_t)

    :math:`\operatorname{orth}(U S V^T)` is about :math:`U V^T`: `ns_steps` of the Newton-Schulz iteration, see
    :func:`boost_ext.ops.orthogonalize`. Without `nesterov` :math:`d_t = m_t`. s is :math:`\sqrt{\max(1, r/c)}` for r
    rows and c columns. A parameter of more than two axes is the matrix of its first axis by all others.

    Parameters of fewer than two axes, and those that `adamw` names, make the steps of :class:`AdamW`. Embeddings and
    the last layer should be among them. They mostly need another learning rate: give it to a group, or take
    ``adjust_lr_fn="match_rms_adamw"``, with which AdamW's rate and decay suit matrices too.

    The arguments are those of ``torch.optim.Muon``. A checkpoint has ``momentum_buffer``, as PyTorch's, and of the
    other parameters ``exp_avg`` and ``exp_avg_sq``.

    Source: Jordan et al. 2024, *Muon: an optimizer for hidden layers in neural networks*; "match_rms_adamw": Liu et al.
    2025, *Muon is scalable for LLM training*, equation 4.

    Args:
        params, learning_rate, loss_scale: see :class:`FusedOptimizer`. Default: 1e-3, 1.0.
        weight_decay (Union[float, int, Cell]): lambda, decoupled. Default: 0.1.
        momentum (float): mu, in [0, 1). Default: 0.95.
        nesterov (bool): whether the momentum looks a step ahead. Default: True.
        eps (float): added to the norm of a matrix, > 0. Default: 1e-7.
        ns_steps (int): iterations, in [0, 100]. Default: 5.
        adjust_lr_fn (str): "original", s as above, or "match_rms_adamw", :math:`s = 0.2 \sqrt{\max(r, c)}`. Default:
            "original".
        adamw (Sequence[str]): parameters with one of these in their names are not stepped as matrices. Default: none.
        beta1, beta2 (float): of AdamW, in [0, 1). Default: 0.9, 0.999.
        adamw_eps (float): of AdamW, > 0. Default: 1e-8.

    Raises:
        ValueError: also if `adamw` holds a text that is in no parameter's name.

    Examples:
        >>> from mindspore import nn, ops
        >>> from boost_ext import optim
        >>> net = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
        >>> optimizer = optim.Muon(net.trainable_params(), 0.02, adamw=("2.weight",))
        >>> _ = optimizer(tuple(ops.ones_like(p) for p in optimizer.parameters))
        >>> [p.name for p in optimizer.moments]
        ['momentum_buffer.0.weight', 'exp_avg.0.bias', 'exp_avg.2.weight', 'exp_avg.2.bias']
    """

    rule = "muon"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        weight_decay: Any = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str = "original",
        adamw: Sequence[str] = (),
        beta1: float = 0.9,
        beta2: float = 0.999,
        adamw_eps: float = 1e-8,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        non_negative("Muon", momentum=momentum)
        if momentum >= 1:
            raise ValueError(f"Muon: momentum must be < 1, got {momentum}")
        require_bool("Muon", "nesterov", nesterov)
        positive("Muon", eps=eps, adamw_eps=adamw_eps)
        require_hyper("Muon", "adamw", beta1=beta1, beta2=beta2)
        if not isinstance(ns_steps, int) or isinstance(ns_steps, bool):
            raise TypeError(f"Muon: ns_steps must be an int, got {type(ns_steps).__name__}")
        if not 0 <= ns_steps <= 100:
            raise ValueError(f"Muon: ns_steps must be in [0, 100], got {ns_steps}")
        if adjust_lr_fn not in _ADJUSTMENTS:
            raise ValueError(f"Muon: adjust_lr_fn must be one of {', '.join(_ADJUSTMENTS)}, got {adjust_lr_fn!r}")
        by_adamw = named("Muon", "adamw", adamw, self.parameters)
        self.is_matrix = tuple(p.ndim >= 2 and not flag for p, flag in zip(self.parameters, by_adamw, strict=True))
        self._make_state()
        matched = float(adjust_lr_fn == "match_rms_adamw")
        hyper = (momentum, float(nesterov), float(ns_steps), eps, matched, beta1, beta2, adamw_eps)
        squares = iter(self.squares)
        lists = (self.moments, [() if flag else next(squares) for flag in self.is_matrix])
        self.fuse(hyper, (self.moments,), lists=lists, special=self.is_matrix)

    def _make_state(self) -> None:
        """``moments`` of all parameters, and ``squares`` of those that AdamW steps."""
        others = [p for p, flag in zip(self.parameters, self.is_matrix, strict=True) if not flag]
        matrices = [p for p, flag in zip(self.parameters, self.is_matrix, strict=True) if flag]
        made = iter(state_like(matrices, "momentum_buffer")), iter(state_like(others, "exp_avg"))
        self.moments = ParameterTuple(next(made[0] if flag else made[1]) for flag in self.is_matrix)
        self.squares = state_like(others, "exp_avg_sq")
