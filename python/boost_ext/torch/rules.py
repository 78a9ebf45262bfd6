"""The optimizers: each a row of a constructor, the names of its state and its native call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from boost_ext import ops
from boost_ext.torch.optimizer import FusedOptimizer, Storage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW8bit",
    "AdamWeightDecay",
    "Lamb",
    "Lamb8bit",
    "Lars",
    "SGD8bit",
]


class Adam(FusedOptimizer):
    """Adam by the rule of ``torch.optim.Adam``, in one native call a group.

    With `weight_decay` it is an L2 penalty; see :class:`AdamW` for the decoupled one. The arguments are those of
    ``torch.optim.Adam``, with `eps` greater than 0, and :class:`Storage`. AMSGrad has float32 state. On a
    GPU, `weight_decay` and `amsgrad` make the host wait for the number of the step.

    Source: Kingma and Ba 2015, *Adam: a method for stochastic optimization*; Reddi et al. 2018 (AMSGrad).

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Adam
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = Adam([weight], lr=0.25)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.75, -0.75]
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        decoupled_weight_decay: bool = False,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        defaults |= {"decoupled_weight_decay": decoupled_weight_decay, "cautious": cautious}
        super().__init__(params, defaults, **storage)

    def require(self, group: dict[str, Any]) -> None:
        if group["amsgrad"] and group["decoupled_weight_decay"]:
            raise ValueError(
                f"{type(self).__name__}: amsgrad must be False with decoupled decay, got True; Adam has it"
            )
        if group["amsgrad"] and group["state_dtype"] != "float32":
            raise ValueError(
                f"{type(self).__name__}: state_dtype must be 'float32' with amsgrad, got {group['state_dtype']!r}"
            )

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        beta1, beta2 = group["betas"]
        eps, cautious = group["eps"], group["cautious"]
        if group["decoupled_weight_decay"] or not (group["weight_decay"] or group["amsgrad"]):
            ops.adamw_step(*tensors, step=step, beta1=beta1, beta2=beta2, eps=eps, cautious=cautious, **options)
            return
        # adam_step adds eps before the correction of the root, torch after it.
        t = int(step)
        eps *= (1 - beta2**t) ** 0.5
        ops.adam_step(*tensors, step=t, beta1=beta1, beta2=beta2, eps=eps, cautious=cautious, **options)


class AdamW(Adam):
    """Adam with decoupled weight decay, by the rule of ``torch.optim.AdamW``, in one native call a group.

    Its ``state_dict`` loads into ``torch.optim.AdamW``, and the other way round. The arguments are those of
    ``torch.optim.AdamW``, with `eps` greater than 0 and without AMSGrad, and :class:`Storage`.

    Source: Loshchilov and Hutter 2019, *Decoupled weight decay regularization*, algorithm 2.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import AdamW
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = AdamW([weight], lr=0.5, weight_decay=0.1)
        >>> weight.square().sum().backward()
        >>> optimizer.step()
        >>> [round(w, 3) for w in weight.tolist()]
        [0.45, -0.45]
    """

    fixed: ClassVar[dict[str, Any]] = {"decoupled_weight_decay": True}

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, decoupled_weight_decay=True, cautious=cautious, **storage
        )


class Adam8bit(Adam):
    """:class:`Adam` with ``state_dtype="float8"``: 2 bytes of state an element.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Adam8bit
        >>> optimizer = Adam8bit(torch.nn.Linear(128, 64).parameters(), lr=1e-3)
        >>> optimizer.param_groups[0]["state_dtype"]
        'float8'
    """

    default_state_dtype = "float8"


class AdamW8bit(AdamW):
    """:class:`AdamW` with ``state_dtype="float8"``: 2 bytes of state an element.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import AdamW8bit
        >>> net = torch.nn.Linear(128, 64)
        >>> optimizer = AdamW8bit(net.parameters(), lr=1e-3)
        >>> net(torch.ones(1, 128)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[net.weight]["exp_avg"].dtype
        torch.uint8
    """

    default_state_dtype = "float8"


class Adafactor(FusedOptimizer):
    """Adafactor: second moments of the rows and columns of a matrix, ``r + c`` numbers for ``r * c`` weights.

    The arguments and the rule are those of ``torch.optim.Adafactor``, but for three things. ``eps[0]²`` is added to the
    squared gradients, as in the paper, where PyTorch clamps averages: to ``eps[0]`` that of a whole matrix, by which it
    divides. Steps differ where the root of that average is below ``√eps[0]``: 3.5e-4 for float32, 0.09 for bfloat16.
    There is no `weight_decay`. Weights in another than C order are copied in a step. The state is float32, and loads
    into ``torch.optim.Adafactor``. On a GPU the host waits for the number of the step. A DTensor is refused: the means
    of a part are others.

    Source: Shazeer and Stern 2018, *Adafactor: adaptive learning rates with sublinear memory cost*.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Adafactor
        >>> weight = torch.nn.Parameter(torch.ones(4, 6))
        >>> optimizer = Adafactor([weight], lr=0.01)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> [round(weight[0, 0].item(), 4), optimizer.state[weight]["row_var"].numel()]
        [0.99, 4]
    """

    narrow_state = False
    split_masters = False
    of_matrices = True
    of_whole_tensors = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, defaults, **storage)

    def require(self, group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            raise ValueError(f"{type(self).__name__}: weight_decay must be 0, got {group['weight_decay']}")

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("row_var", "col_var", "variance")

    def state_shape(self, p: Any, name: str, group: dict[str, Any]) -> tuple[int, ...] | None:
        shape = list(p.shape)
        if (name == "variance") != (len(shape) < 2):
            return None
        if name != "variance":
            shape[-1 if name == "row_var" else -2] = 1
        return tuple(shape)

    def converted_state(self, p: Any, name: str, saved: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        return {name: saved[name].to(p.device, torch.float32, copy=True)}

    def _buckets(self, group: dict[str, Any]) -> Iterator[Any]:
        for bucket, fresh in super()._buckets(group):
            dtypes = dict.fromkeys(p.dtype for p in bucket.params)
            if len(dtypes) == 1 or group["eps"][0] is not None:
                yield bucket, fresh
                continue
            for dtype in dtypes:  # each has its own eps, so each is counted by itself
                part = bucket.chosen([p.dtype == dtype for p in bucket.params], bucket.step.clone())
                for state in part.states:
                    state["step"] = part.step
                yield part, fresh

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        t, eps = int(step), group["eps"]
        root = torch.finfo(tensors[0][0].dtype).eps if eps[0] is None else eps[0]
        ops.adafactor_step(
            *tensors,
            step=t,
            lr=min(float(options["lr"]), t**-0.5),
            eps=(root**2, eps[1]),
            clip_threshold=group["d"],
            decay_rate=-group["beta2_decay"],
            inv_scale=float(options["inv_scale"]),
            skip=options["skip"],
            masters=options.get("masters"),
        )


class AdamWeightDecay(FusedOptimizer):
    """Adam with decoupled weight decay and without the correction of the bias, as BERT was trained.

    ``w -= lr * (m / (√v + eps) + weight_decay * w)``. `eps` is greater than 0.

    Source: Devlin et al. 2019, *BERT*; ``mindspore.nn.AdamWeightDecay``.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import AdamWeightDecay
        >>> net = torch.nn.Linear(4, 2)
        >>> optimizer = AdamWeightDecay(net.parameters(), lr=1e-4, weight_decay=0.01)
    """

    op = staticmethod(ops.adam_weight_decay_step)
    states = ("exp_avg", "exp_avg_sq")
    hyper = ("eps", "cautious")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "cautious": cautious}
        super().__init__(params, defaults, **storage)


class Lamb(FusedOptimizer):
    """LAMB, Adam for large batches: the step of each tensor is scaled to the norm of its weights.

    ``r = m/(1-b1^t) / (√(v/(1-b2^t)) + eps) + weight_decay * w``; ``w -= lr * ‖w‖/‖r‖ * r``. `eps` is
    greater than 0. A DTensor is refused: the norm of a part is another.

    Source: You et al. 2020, *Large batch optimization for deep learning: training BERT in 76 minutes*, algorithm 2.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Lamb
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = Lamb([weight], lr=0.01, weight_decay=0.0)
        >>> weight.sum().backward()
        >>> optimizer.step()  # by 1 % of the norm of the weight
        >>> [round(w, 3) for w in weight.tolist()]
        [2.965, 3.965]
    """

    op = staticmethod(ops.lamb_step)
    states = ("exp_avg", "exp_avg_sq")
    hyper = ("eps",)
    of_whole_tensors = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        **storage: Unpack[Storage],
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **storage)


class Lamb8bit(Lamb):
    """:class:`Lamb` with ``state_dtype="float8"``: 2 bytes of state an element.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Lamb8bit
        >>> optimizer = Lamb8bit(torch.nn.Linear(128, 64).parameters(), lr=1e-3)
    """

    default_state_dtype = "float8"


class SGD(FusedOptimizer):
    """SGD with momentum, by the rule of ``torch.optim.SGD``, in one native call a group.

    Its ``state_dict`` loads into ``torch.optim.SGD``, and the other way round. The arguments are those of
    ``torch.optim.SGD``, and :class:`Storage`. With `dampening` the state is float32.

    Source: Sutskever et al. 2013, *On the importance of initialization and momentum in deep learning*.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import SGD
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> optimizer = SGD([weight], lr=0.25, momentum=0.5)
        >>> for _ in range(2):
        ...     weight.grad = torch.tensor([1.0, -1.0])
        ...     optimizer.step()
        >>> weight.tolist()
        [0.375, -0.375]
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "nesterov": nesterov, "cautious": cautious}, **storage)

    def require(self, group: dict[str, Any]) -> None:
        who = type(self).__name__
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(f"{who}: nesterov must come with a momentum and without dampening")
        if group["cautious"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(f"{who}: cautious must come with a momentum and without dampening")
        if group["dampening"] and group["state_dtype"] != "float32":
            raise ValueError(f"{who}: state_dtype must be 'float32' with dampening, got {group['state_dtype']!r}")

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def needed(self, p: Any, group: dict[str, Any]) -> Iterable[str]:
        return ()  # PyTorch's counts no steps, and `momentum` may have been 0 so far

    def _loaded_entry(self, p: Any, saved: dict[str, Any], group: dict[str, Any], *rest: Any) -> dict[str, Any]:
        """With the buffer also where `momentum` is 0 for a while."""
        has_buffer = "momentum_buffer" in saved and not group["momentum"]
        return super()._loaded_entry(p, saved, {**group, "momentum": 1.0} if has_buffer else group, *rest)

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        momentum, nesterov = group["momentum"], group["nesterov"]
        if not momentum:
            ops.sgd_step(*tensors, **options)
        elif not group["dampening"]:
            options |= {"use_nesterov": nesterov, "cautious": group["cautious"]}
            ops.momentum_step(*tensors, step=step, momentum=momentum, **options)
        else:
            # After a first step that was skipped the state is new still.
            new = True if int(step) == 1 else first
            ops.sgd_step(*tensors, momentum=momentum, dampening=group["dampening"], first=new, **options)


class SGD8bit(SGD):
    """:class:`SGD` with ``state_dtype="float8"``: 1 byte of state an element.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import SGD8bit
        >>> optimizer = SGD8bit(torch.nn.Linear(128, 64).parameters(), lr=0.1, momentum=0.9)
    """

    default_state_dtype = "float8"


class Lars(SGD):
    """SGD with momentum for large batches: the gradient of each tensor is scaled to the norm of its weights.

    ``g *= trust_coefficient * ‖w‖ / (‖g‖ + weight_decay * ‖w‖ + eps)``, and so is its decay; then as :class:`SGD`. A
    group with ``adapt=False``, such as biases and norms, is not scaled and not decayed. A DTensor is refused: the norm
    of a part is another.

    Source: You et al. 2017, *Large batch training of convolutional networks*, algorithm 1.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Lars
        >>> net = torch.nn.Linear(4, 2)
        >>> groups = [{"params": [net.weight]}, {"params": [net.bias], "adapt": False}]
        >>> optimizer = Lars(groups, lr=1.0, weight_decay=1e-4)
    """

    of_whole_tensors = True

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        trust_coefficient: float = 1e-3,
        eps: float = 1e-8,
        adapt: bool = True,
        cautious: bool = False,
        **storage: Unpack[Storage],
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        defaults |= {"nesterov": nesterov, "trust_coefficient": trust_coefficient, "eps": eps, "adapt": adapt}
        defaults |= {"cautious": cautious}
        FusedOptimizer.__init__(self, params, defaults, **storage)

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        decay, settings = options.pop("weight_decay"), {"epsilon": group["eps"], "apply": group["adapt"]}
        settings |= {"coefficient": group["trust_coefficient"], "inv_scale": abs(options["inv_scale"])}
        ratios = ops.lars_ratios(*tensors[:2], weight_decay=decay, **settings)
        ratio, decay_ratio = (r.nan_to_num(1.0) for r in ratios)  # the gradient is nan, and so will the weight be
        options |= {"ratio": ratio, "weight_decay": decay_ratio * decay}
        super().update(tensors, group, step=step, first=first, **options)
