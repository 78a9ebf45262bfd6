"""Muon."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from boost_ext import ops
from boost_ext.torch.optimizer import FusedOptimizer, Storage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Muon"]

_COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the Newton-Schulz iteration, as ``torch.optim.Muon`` has them."""


class Muon(FusedOptimizer):
    """Muon: matrices step along their orthogonalized momentum, all other tensors by AdamW, in one native call a group.

    The rule for matrices is that of ``torch.optim.Muon``, with the iteration in float32 instead of bfloat16. On a GPU
    factors of large products are rounded to TF32, unless `allow_tf32` is False (see :func:`boost_ext.ops.muon_step`).
    On a CPU they are rounded to bfloat16, if :func:`boost_ext.set_float32_matmul_precision` says so. A tensor of more
    than two axes, such as a convolution, is the matrix of its first axis by all others. Tensors of fewer than two axes
    make the steps of :class:`~boost_ext.torch.AdamW`, and so do those of a group with ``use_muon=False``: take one for
    embeddings and the last layer. AdamW mostly needs another `lr`, unless `adjust_lr_fn` is "match_rms_adamw".

    The other arguments are those of ``torch.optim.Muon``, but `ns_coefficients`, which are its defaults. The state is
    float32; that of matrices loads into ``torch.optim.Muon``, and the other way round. On a GPU the host waits for the
    number of the step. Weights in another than C order are copied in a step. A DTensor is refused: the singular values
    of a part are others.

    Source: Jordan et al. 2024, *Muon: an optimizer for hidden layers in neural networks*; "match_rms_adamw": Liu et al.
    2025, *Muon is scalable for LLM training*.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Muon
        >>> net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        >>> head = {"params": net[2].parameters(), "use_muon": False, "lr": 1e-3}
        >>> optimizer = Muon([{"params": net[0].parameters()}, head], lr=0.02)
        >>> net(torch.ones(1, 64)).sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state_dict()["state"][0])
        ['momentum_buffer', 'step']
    """

    narrow_state = False
    split_masters = False
    of_matrices = True
    of_whole_tensors = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = _COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        use_muon: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        adamw_eps: float = 1e-8,
        allow_tf32: bool = True,
        **storage: Unpack[Storage],
    ) -> None:
        defaults: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        defaults |= {"ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        defaults |= {"use_muon": use_muon, "betas": betas, "adamw_eps": adamw_eps}
        defaults["allow_tf32"] = allow_tf32
        super().__init__(params, defaults, **storage)

    shaping = (*FusedOptimizer.shaping, "use_muon")

    def require(self, group: dict[str, Any]) -> None:
        if tuple(group["ns_coefficients"]) != _COEFFICIENTS:
            raise ValueError(
                f"{type(self).__name__}: ns_coefficients must be {_COEFFICIENTS}, got {group['ns_coefficients']}"
            )

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer", "exp_avg", "exp_avg_sq")

    def state_shape(self, p: Any, name: str, group: dict[str, Any]) -> tuple[int, ...] | None:
        is_matrix = group["use_muon"] and p.ndim >= 2
        return tuple(p.shape) if (name == "momentum_buffer") == is_matrix else None

    def needed(self, p: Any, group: dict[str, Any]) -> Iterable[str]:
        keys = super().needed(p, group)
        return (k for k in keys if k != "step" or "momentum_buffer" not in keys)  # PyTorch's counts no steps

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        params, grads, momenta, averages, squares = tensors
        ops.muon_step(
            params,
            grads,
            [a if m is None else m for m, a in zip(momenta, averages, strict=True)],
            squares,
            lr=float(options["lr"]),
            step=int(step),
            momentum=group["momentum"],
            nesterov=group["nesterov"],
            ns_steps=group["ns_steps"],
            eps=group["eps"],
            adjust_lr_fn=group["adjust_lr_fn"] or "original",
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            adamw_eps=group["adamw_eps"],
            weight_decay=options["weight_decay"],
            inv_scale=float(options["inv_scale"]),
            allow_tf32=group["allow_tf32"],
            masters=options.get("masters"),
            skip=options["skip"],
        )
