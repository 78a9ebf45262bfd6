"""Every optimizer of mindspore.nn that runs on the CPU, parameters and gradients for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from boost_ext.ms.optim.adoption import native_step

SHAPES = {"conv.weight": (4, 3, 3, 3), "bn.gamma": (4,), "fc.weight": (5, 7), "fc.bias": (5,)}

OPTIMIZERS: dict[str, Callable[..., nn.Optimizer]] = {
    "Momentum": lambda p, lr=0.1: nn.Momentum(p, lr, 0.9, weight_decay=0.01),
    "Momentum-scale": lambda p, lr=0.1: nn.Momentum(p, lr, 0.9, weight_decay=0.01, loss_scale=8.0, use_nesterov=True),
    "SGD": lambda p, lr=0.1: nn.SGD(p, lr, 0.9, weight_decay=0.01),
    "Adam": lambda p, lr=0.1: nn.Adam(p, lr, weight_decay=0.01),
    "Adam-amsgrad": lambda p, lr=0.1: nn.Adam(p, lr, use_amsgrad=True),
    "Adam-nesterov": lambda p, lr=0.1: nn.Adam(p, lr, use_nesterov=True),
    "Adam-lazy": lambda p, lr=0.1: nn.Adam(p, lr, use_lazy=True),
    "Adam-offload": lambda p, lr=0.1: nn.Adam(p, lr, use_offload=True),
    "AdamOffload": lambda p, lr=0.1: nn.AdamOffload(p, lr, weight_decay=0.01, loss_scale=4.0),
    "LazyAdam": lambda p, lr=0.1: nn.LazyAdam(p, lr),
    "AdamWeightDecay": lambda p, lr=0.1: nn.AdamWeightDecay(p, lr, beta1=0.8, weight_decay=0.01),
    "Adagrad": lambda p, lr=0.1: nn.Adagrad(p, learning_rate=lr),
    "RMSProp": lambda p, lr=0.1: nn.RMSProp(p, lr, momentum=0.5),
    "RMSProp-centered": lambda p, lr=0.1: nn.RMSProp(p, lr, centered=True),
    "FTRL": lambda p: nn.FTRL(p, learning_rate=0.1, weight_decay=0.01),
    "ProximalAdagrad": lambda p, lr=0.1: nn.ProximalAdagrad(p, learning_rate=lr),
    "AdaFactor": lambda p: nn.AdaFactor(p, weight_decay=0.01),
    "AdaFactor-plain": lambda p: nn.AdaFactor(
        p, 0.1, beta1=None, relative_step=False, scale_parameter=False, clip_threshold=2.0
    ),
    "Adadelta": lambda p, lr=0.1: nn.Adadelta(p, lr),
    "AdaMax": lambda p, lr=0.1: nn.AdaMax(p, lr),
    "ASGD": lambda p, lr=0.1: nn.ASGD(p, lr),
    "Rprop": lambda p, lr=0.1: nn.Rprop(p, lr),
}


def make_parameters(seed: int = 0) -> list[Parameter]:
    rng = np.random.default_rng(seed)
    return [Parameter(Tensor(rng.standard_normal(s).astype(np.float32)), name=n) for n, s in SHAPES.items()]


def make_grads(seed: int) -> tuple[Tensor, ...]:
    rng = np.random.default_rng(100 + seed)
    return tuple(Tensor(rng.standard_normal(s).astype(np.float32)) for s in SHAPES.values())


def values(tensors: Any) -> list[np.ndarray]:
    return [t.asnumpy().copy() for t in tensors]


def assert_close(got: Any, expected: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Not to the bit: where a tensor lies decides which elements MindSpore's kernels take by vectors."""
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(g), np.asarray(e), rtol=rtol, atol=atol)


def schedule() -> nn.learning_rate_schedule.LearningRateSchedule:
    return nn.ExponentialDecayLR(0.1, 0.5, 2, True)


RATES: dict[str, Callable[[], Any]] = {
    "float": lambda: 0.1,
    "tensor": lambda: Tensor(0.1, ms.float32),
    "list": lambda: [0.1, 0.2, 0.05, 0.3, 0.01, 0.15, 0.07, 0.12],
    "schedule": schedule,
}


def in_groups(parameters: list[Parameter], rate: Any = None) -> list[dict[str, Any]]:
    """Two groups that are interleaved; the first with a learning rate of its own, if one is given."""
    first = {"params": [parameters[2], parameters[0]], "weight_decay": 0.05}
    if rate is not None:
        first["lr"] = rate
    return [first, {"params": [parameters[3], parameters[1]]}, {"order_params": parameters}]


def natively(optimizer: nn.Optimizer) -> Any:
    """Its native step, which compiles nothing in PYNATIVE_MODE; the optimizer itself where it has none."""
    return native_step(optimizer) or optimizer
