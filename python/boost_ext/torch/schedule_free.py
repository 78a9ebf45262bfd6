"""Schedule-Free SGD and AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from boost_ext import ops
from boost_ext.torch.optimizer import FusedOptimizer, Storage
from boost_ext.torch.storage import set_master, wide_weight

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ScheduleFreeAdamW", "ScheduleFreeSGD"]

_BEGINNING = {"k": 0, "lr_max": 0.0, "weight_sum": 0.0, "train_mode": True}
"""Of a group, under the names of the authors' code: steps so far, what the average counts, what the weights hold."""


class _Average(NamedTuple):
    lr: float
    averaging_weight: float
    counted: dict[str, float]


def _average(who: str, group: dict[str, Any]) -> _Average:
    """Of the next step."""
    step, warmup = group["k"] + 1, group["warmup_steps"]
    lr = float(group["lr"])
    if not 0 <= lr < float("inf"):
        raise ValueError(f"{who}: lr must be finite and >= 0, got {lr}")
    lr *= step / warmup if step < warmup else 1.0
    lr_max = max(lr, group["lr_max"])
    weight = step ** group["r"] * lr_max ** group["weight_lr_power"]
    total = group["weight_sum"] + weight
    return _Average(lr, weight / total if total else 0.0, {"k": step, "lr_max": lr_max, "weight_sum": total})


class _ScheduleFree(FusedOptimizer):
    """The average of each group, and the two states of the weights."""

    narrow_state = False
    changing: ClassVar[dict[str, Any]] = {**FusedOptimizer.changing, **_BEGINNING}
    # The host must know which steps count, so the scaler skips those that overflow.
    _step_supports_amp_scaling = False

    def beta(self, group: dict[str, Any]) -> float:
        """How much of y is x."""
        return float(group["betas"][0])

    def require(self, group: dict[str, Any]) -> None:
        if group["warmup_steps"] < 0:
            raise ValueError(f"{type(self).__name__}: warmup_steps must be >= 0, got {group['warmup_steps']}")
        if not 0 < self.beta(group) < 1:  # the step refuses it too, but eval() may come first, and divides by it
            name = "momentum" if "momentum" in group else "beta1"
            raise ValueError(f"{type(self).__name__}: {name} must be in (0, 1), got {self.beta(group)}")

    def new_state(self, p: Any, name: str, group: dict[str, Any]) -> dict[str, Any]:
        """z begins where the weights are."""
        if name == "z":
            return {"z": torch.empty_like(p, dtype=torch.float32).copy_(p)}
        return super().new_state(p, name, group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all parameters that have a gradient. The others keep their state.

        Args:
            closure: computes the loss and its gradients again. Default: none.

        Returns:
            The loss that `closure` returns, or None.

        Raises:
            ValueError: after :meth:`eval`.
        """
        if not all(group["train_mode"] for group in self.param_groups):
            raise ValueError(f"{type(self).__name__}: train_mode must be True for a step, got False; call train()")
        return super().step(closure)

    def _buckets(self, group: dict[str, Any]) -> Iterator[Any]:
        # All members of a group have one average: it counts the step when the last one is stepped.
        stepped, skips = False, getattr(self, "found_inf", None)
        for found in super()._buckets(group):
            stepped = True
            yield found
        if stepped and not (skips is not None and skips.item()):
            group.update(_average(type(self).__name__, group).counted)

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        average = _average(type(self).__name__, group)
        options |= {"lr": average.lr, "averaging_weight": average.averaging_weight}
        if step == 1 if isinstance(step, int) else group["k"] == 0:
            # Since z was made a first step may have been refused or skipped, and the weights loaded.
            for p, z in zip(tensors[0], tensors[2], strict=True):
                z.copy_(p)
        self.op(*tensors, **self.hyperparameters(group, step), **options)

    def hyperparameters(self, group: dict[str, Any], step: Any) -> dict[str, Any]:
        """What the op takes beside the average."""
        return {"momentum": group["momentum"]}

    def eval(self) -> None:
        """Give the parameters their average x, to evaluate or to save them. Steps are refused until :meth:`train`.

        Nothing changes if they have it.
        """
        self._switch(False)

    def train(self) -> None:
        """Give the parameters y, with which they are trained. Nothing changes if they have it.

        From x, which is rounded, y may come back with another last digit: of float32, or of the parameter's own dtype
        if it has no master.
        """
        self._switch(True)

    @torch.no_grad()
    def _switch(self, train: bool) -> None:
        for group in self.param_groups:
            self.require(group)
        for group in self.param_groups:
            if group["train_mode"] == train:
                continue
            share = 1 - self.beta(group) if train else 1 - 1 / self.beta(group)
            for p in group["params"]:
                entry = self.state.get(p, {})
                if "z" not in entry:  # never stepped: x, y and z are the same
                    continue
                master = None if p.dtype == torch.float32 else entry.get("master")
                moved = torch.lerp(wide_weight(p, master).double(), entry["z"].double(), share)
                if master is None:
                    p.copy_(moved)
                else:
                    set_master(p, master, moved)
            group["train_mode"] = train

    def _loaded_entry(
        self, p: Any, saved: dict[str, Any], group: dict[str, Any], steps: dict[Any, Any], who: str
    ) -> dict[str, Any]:
        """The authors' code counts steps in the group alone."""
        counted = {"step": float(group["k"]), **saved} if "z" in saved else saved
        return super()._loaded_entry(p, counted, group, steps, who)


class ScheduleFreeSGD(_ScheduleFree):
    """SGD without a schedule of the learning rate: an average of all steps takes the place of its decay.

    ``z -= lr * g``; ``x += c (z - x)``; the weights are ``y = (1 - momentum) z + momentum x``, where c is the weight of
    this step over the sum of all weights, ``t**r * lr_max**weight_lr_power``. **Call** :meth:`eval` **before you
    evaluate or save the weights**, which gives them x, and :meth:`train` before the next step. A step after
    :meth:`eval` is refused. The running averages of batch normalization belong to y: after :meth:`eval`, run some
    batches of training data through the network in its training mode.

    Arguments, state and groups have the names and defaults of the authors' code, whose checkpoints load. There
    ``train()`` must be called before the first step; here it may be. Half weights should have `master`. `momentum` is
    in (0, 1). The host reads the learning rate. ``torch.amp.GradScaler`` works, and lets the host decide on each step.

    Source: Defazio et al. 2024, *The road less scheduled*.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import ScheduleFreeSGD
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = ScheduleFreeSGD([weight], lr=0.5)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     weight.sum().backward()
        ...     optimizer.step()
        >>> optimizer.eval()
        >>> weight.tolist()
        [0.25, -1.75]
    """

    op = staticmethod(ops.schedule_free_sgd_step)
    states = ("z",)

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "warmup_steps": warmup_steps}
        super().__init__(params, {**defaults, "r": r, "weight_lr_power": weight_lr_power, **_BEGINNING}, **storage)

    def beta(self, group: dict[str, Any]) -> float:
        return float(group["momentum"])


class ScheduleFreeAdamW(_ScheduleFree):
    """:class:`AdamW` without a schedule of the learning rate: an average of all steps takes the place of its decay.

    :class:`ScheduleFreeSGD` with ``g / (√(v/(1-b2^t)) + eps) + weight_decay * y`` for g, and b1 for its momentum. The
    state is that of AdamW, 8 bytes a weight: z takes the place of the first moment. **Call** :meth:`eval` **before you
    evaluate or save the weights**, and :meth:`train` before the next step. b1 and `eps` are greater than 0.

    Source: Defazio et al. 2024, *The road less scheduled*.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import ScheduleFreeAdamW
        >>> net = torch.nn.Linear(4, 2)
        >>> optimizer = ScheduleFreeAdamW(net.parameters(), lr=2.5e-3, warmup_steps=100)
        >>> net(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[net.weight])
        ['exp_avg_sq', 'step', 'z']
    """

    op = staticmethod(ops.schedule_free_adamw_step)
    states = ("z", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float = 0.0025,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "warmup_steps": warmup_steps}
        super().__init__(params, {**defaults, "r": r, "weight_lr_power": weight_lr_power, **_BEGINNING}, **storage)

    def hyperparameters(self, group: dict[str, Any], step: Any) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"step": step, "beta1": beta1, "beta2": beta2, "eps": group["eps"]}
