"""Newer rules: Lion, NAdamW, AdEMAMix and Adan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from boost_ext import ops
from boost_ext.torch.optimizer import FusedOptimizer, Storage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AdEMAMix", "Adan", "Lion", "Lion8bit", "NAdamW", "NAdamW8bit"]


class Lion(FusedOptimizer):
    """Sign momentum with decoupled weight decay: one state, half of Adam's.

    ``w -= lr * (sign(b1 m + (1-b1) g) + weight_decay * w)``; ``m = b2 m + (1-b2) g``. Each weight moves by `lr`, which
    is a third to a tenth of AdamW's; `weight_decay` is three to ten times its.

    Source: Chen et al. 2023, *Symbolic discovery of optimization algorithms*, algorithm 2.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Lion
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = Lion([weight], lr=0.25)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.75, -0.75]
    """

    op = staticmethod(ops.lion_step)
    states = ("exp_avg",)
    hyper = ("cautious",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "cautious": cautious}
        super().__init__(params, defaults, **storage)

    def needed(self, p: Any, group: dict[str, Any]) -> Iterable[str]:
        return self.states  # the step corrects nothing


class Lion8bit(Lion):
    """:class:`Lion` with ``state_dtype="float8"``: 1 byte of state an element.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Lion8bit
        >>> optimizer = Lion8bit(torch.nn.Linear(128, 64).parameters(), lr=1e-4)
    """

    default_state_dtype = "float8"


class NAdamW(FusedOptimizer):
    """:class:`AdamW` with Nesterov momentum, by the rule of ``torch.optim.NAdam(decoupled_weight_decay=True)``.

    Its ``state_dict`` loads into ``torch.optim.NAdam``, and the other way round. The arguments are those of PyTorch's,
    with `eps` greater than 0. The product of the momenta comes from the number of the step, in float64, and
    not from a state: if a scheduler changes `betas`, it is what it would be had they always been so.

    Source: Dozat 2016, *Incorporating Nesterov momentum into Adam*; decoupled decay: Loshchilov and Hutter 2019.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import NAdamW
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = NAdamW([weight], lr=0.1)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> [round(w, 3) for w in weight.tolist()]
        [0.893, -0.893]
    """

    op = staticmethod(ops.nadamw_step)
    states = ("exp_avg", "exp_avg_sq")
    hyper = ("eps", "momentum_decay", "cautious")

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = True,
        *,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay}
        defaults["cautious"] = cautious
        super().__init__(params, defaults, **storage)

    def require(self, group: dict[str, Any]) -> None:
        if group["weight_decay"] and not group["decoupled_weight_decay"]:
            raise ValueError(f"{type(self).__name__}: decoupled_weight_decay must be True, got False")

    def saved(self, result: dict[str, Any]) -> dict[str, Any]:
        """With the ``mu_product`` of ``torch.optim.NAdam``."""
        result = super().saved(result)
        for group in result["param_groups"]:
            products: dict[int, float] = {}
            entries = (result["state"].get(i, {}) for i in group["params"])
            for entry in (e for e in entries if "step" in e):
                steps = int(entry["step"])
                if steps not in products:
                    products[steps] = _product_of_momenta(group, steps)
                entry["mu_product"] = torch.tensor(products[steps])
        return result


def _product_of_momenta(group: dict[str, Any], steps: int) -> float:
    beta1 = float(group["betas"][0])
    if beta1 == 0:
        return 0.0
    many = math.ceil(math.log(2.0**-150) / math.log(beta1))  # 0 in float32
    counted = torch.arange(1, min(steps, many) + 1, dtype=torch.float64)
    return float((beta1 * (1 - 0.5 * 0.96 ** (counted * group["momentum_decay"]))).prod())


class NAdamW8bit(NAdamW):
    """:class:`NAdamW` with ``state_dtype="float8"``: 2 bytes of state an element.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import NAdamW8bit
        >>> optimizer = NAdamW8bit(torch.nn.Linear(128, 64).parameters(), lr=1e-3)
    """

    default_state_dtype = "float8"


class AdEMAMix(FusedOptimizer):
    """:class:`AdamW` with a second first moment, which looks back ten thousand steps.

    ``s = b3 s + (1-b3) g``; ``m/(1-b1^t) + alpha s`` takes the place of ``m/(1-b1^t)``. Over the first `alpha_steps`
    alpha grows from 0, linearly; over the first `beta3_steps` b3 grows from b1, so that its half-life grows linearly.
    Both are usually the number of all steps. b3 and `eps` are greater than 0. The state is float32: rounding one of
    fewer bits ten thousand times would leave little of it.

    Source: Pagliardini et al. 2024, *The AdEMAMix optimizer: better, faster, older*.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import AdEMAMix
        >>> net = torch.nn.Linear(4, 2)
        >>> optimizer = AdEMAMix(net.parameters(), lr=1e-3, alpha_steps=10_000, beta3_steps=10_000)
        >>> net(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[net.weight])
        ['exp_avg', 'exp_avg_slow', 'exp_avg_sq', 'step']
    """

    op = staticmethod(ops.ademamix_step)
    states = ("exp_avg", "exp_avg_sq", "exp_avg_slow")
    hyper = ("eps", "alpha", "alpha_steps", "beta3_steps", "cautious")
    narrow_state = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        alpha: float = 5.0,
        alpha_steps: int = 0,
        beta3_steps: int = 0,
        *,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "alpha": alpha}
        defaults |= {"alpha_steps": alpha_steps, "beta3_steps": beta3_steps, "cautious": cautious}
        super().__init__(params, defaults, **storage)


class Adan(FusedOptimizer):
    """Adaptive Nesterov momentum: averages of the gradient, of its change, and of the square of both.

    See :func:`boost_ext.ops.adan_step` for the rule. Betas are the share that is kept, as in the authors' code. `eps`
    is greater than 0. Four states of float32, twice Adam's.

    Source: Xie et al. 2022, *Adan: adaptive Nesterov momentum algorithm for faster optimizing deep models*.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Adan
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = Adan([weight], lr=0.25)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.75, -0.75]
    """

    op = staticmethod(ops.adan_step)
    states = ("exp_avg", "exp_avg_sq", "exp_avg_diff", "last_grad")
    hyper = ("eps", "cautious")
    narrow_state = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "cautious": cautious}
        super().__init__(params, defaults, **storage)
