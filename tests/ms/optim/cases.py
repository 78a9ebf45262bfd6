"""Every optimizer with its options, its float64 oracle, and the class of mindspore.nn that it stands for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from tests import oracle
from tests.masks import signs, singular_basis

from boost_ext import optim

SHAPES = {
    "conv.weight": (4, 3, 3, 3),
    "bn.gamma": (4,),
    "bn.beta": (4,),
    "fc.weight": (5, 7),
    "fc.bias": (5,),
    "temperature": (),
    "nothing": (0, 3),
}
DECAYED = tuple("gamma" not in name and "beta" not in name for name in SHAPES)

# Of an element beside its oracle, after 20 float32 steps.
RTOL, ATOL = 2e-5, 2e-6


@dataclass(frozen=True)
class Case:
    """``rule(w, u, states, lr, step, decay)``: the oracle with this case's hyperparameters."""

    ours: type[optim.FusedOptimizer]
    rule: Callable[..., oracle.Moments]
    start: tuple[float, ...] = ()  # what the states begin with
    arguments: dict[str, Any] = field(default_factory=dict)
    # None: it does not run on the CPU, or computes something else there, see test_mindspores_cpu_operators_differ.
    theirs: type[nn.Optimizer] | None = None
    decoupled: bool = False
    scales: bool = True  # has a loss_scale
    named: bool = False  # the rule's states begin with the name of the parameter
    one_rate: bool = False  # neither groups of rates nor schedules
    rtol: float = RTOL
    atol: float = ATOL

    def make(self, parameters: Any, learning_rate: Any = 0.1, **kwargs: Any) -> optim.FusedOptimizer:
        return self.ours(parameters, learning_rate=learning_rate, **{**self.arguments, **kwargs})

    def make_theirs(self, parameters: Any, learning_rate: Any = 0.1, **kwargs: Any) -> nn.Optimizer:
        return self.theirs(parameters, learning_rate=learning_rate, **self.arguments, **kwargs)


def _sgd(m: float, d: float = 0.0, nesterov: bool = False) -> Callable[..., oracle.Moments]:
    return lambda w, u, s, lr, t, decay: oracle.sgd_step(w, u, s[0] if m else None, lr, m, d, nesterov, t == 1)


def _momentum(nesterov: bool) -> Callable[..., oracle.Moments]:
    return lambda w, u, s, lr, t, decay: oracle.momentum_step(w, u, s[0], lr, 0.9, nesterov)


def _adam(nesterov: bool = False, amsgrad: bool = False) -> Callable[..., oracle.Moments]:
    return lambda w, u, s, lr, t, decay: oracle.adam_step(
        w, u, s[0], s[1], s[2] if amsgrad else None, lr, t, 0.9, 0.999, 1e-8, nesterov
    )


def _adagrad(w, u, s, lr, t, decay):
    return oracle.adagrad_step(w, u, s[0], lr, True)


def _frozen_adagrad(w, u, s, lr, t, decay):
    return oracle.adagrad_step(w, u, s[0], lr, False)


def _proximal(l1: float, l2: float) -> Callable[..., oracle.Moments]:
    return lambda w, u, s, lr, t, decay: oracle.proximal_adagrad_step(w, u, s[0], lr, l1, l2)


def _rmsprop(w, u, s, lr, t, decay):
    return oracle.rmsprop_step(w, u, *s, lr, 0.9, 0.5, 1e-6)


def _centered(w, u, s, lr, t, decay):
    return oracle.centered_rmsprop_step(w, u, *s, lr, 0.9, 0.5, 1e-6)


def _ftrl(l1: float, l2: float) -> Callable[..., oracle.Moments]:
    return lambda w, u, s, lr, t, decay: oracle.ftrl_step(w, u, *s, lr, l1, l2, -0.5)


def _adam_weight_decay(w, u, s, lr, t, decay):
    return oracle.adam_weight_decay_step(w, u, *s, lr, 0.9, 0.999, 1e-6, decay)


def _adamw(w, u, s, lr, t, decay):
    return oracle.adamw_step(w, u, *s, lr, t, 0.9, 0.999, 1e-8, decay)


def _lion(w, u, s, lr, t, decay):
    return oracle.lion_step(w, u, *s, lr, 0.9, 0.99, decay)


def _nadamw(w, u, s, lr, t, decay):
    return oracle.nadamw_step(w, u, *s, lr, t, 0.9, 0.999, 1e-8, 0.004, decay)


def _ademamix(w, u, s, lr, t, decay):
    return oracle.ademamix_step(w, u, *s, lr, t, 0.9, 0.999, 1e-8, 0.99, 5.0, 4.0, 30.0, decay)


def _adan(w, u, s, lr, t, decay):
    return oracle.adan_step(w, u, *s, lr, t, 0.98, 0.92, 0.99, 1e-8, decay)


def _cautious_adamw(w, u, s, lr, t, decay):
    return oracle.adamw_step(w, u, *s, lr, t, 0.9, 0.999, 1e-8, decay, cautious=True)


def _lamb(w, u, s, lr, t, decay):
    return oracle.lamb_step(w, u, *s, lr, t, 0.9, 0.999, 1e-6, decay)


def _adafactor(**hyper: Any) -> Callable[..., oracle.Moments]:
    """Its state has shapes of its own, and is made by the first step."""

    def rule(w, u, s, lr, t, decay):
        own = oracle.AdaFactor(lr=lr, **hyper)
        return oracle.adafactor_step(w, u, s or oracle.adafactor_state(w.shape, own.beta1), t, decay, own)

    return rule


def _muon(**hyper: Any) -> Callable[..., oracle.Moments]:
    """Matrices have one state, all others the two of AdamW; made by the first step."""

    def rule(w, u, s, lr, t, decay):
        if w.ndim < 2:
            return oracle.adamw_step(w, u, *(s or [np.zeros(w.shape)] * 2), lr, t, 0.9, 0.999, 1e-8, decay)
        return oracle.muon_step(w, u, *(s or [np.zeros(w.shape)]), lr, decay, **hyper)

    return rule


def _apollo(rank: int, gap: int = 200, seed: int = 0, **hyper: Any) -> Callable[..., oracle.Moments]:
    """Matrices whose shorter side is larger than the rank; all others as AdamW. The basis depends on the name."""
    own = oracle.Apollo(**hyper)

    def rule(w, u, s, lr, t, decay):
        name, *state = s
        sides = (len(w), w.size // len(w)) if w.ndim >= 2 and w.size else (0, 0)
        if min(sides) <= rank:
            state = state or [np.zeros(w.shape)] * 2
            made = oracle.adamw_step(w, u, *state, lr, t, *own.betas, own.eps, decay)
        else:
            wide = sides[0] <= sides[1]
            number = zlib.crc32(name.encode()) % (2**31 - 1)
            P = signs((rank, min(sides)), seed, (t - 1) // gap, number)
            zeros = np.zeros((rank, sides[1]) if wide else (sides[0], rank))
            made = oracle.apollo_step(w, u, P, state or [zeros, zeros, 0.0], lr, t, decay, own)
        return oracle.Moments(made[0], (name, *made[1]))

    return rule


def _galore(rank: int, gap: int = 200, **hyper: Any) -> Callable[..., oracle.Moments]:
    """As :func:`_apollo`. The sides are so short that the iteration is exact."""
    own = oracle.Apollo(**({"factor": 0.25} | hyper))

    def rule(w, u, s, lr, t, decay):
        sides = (len(w), w.size // len(w)) if w.ndim >= 2 and w.size else (0, 0)
        if min(sides) <= rank:
            return oracle.adamw_step(w, u, *(s or [np.zeros(w.shape)] * 2), lr, t, *own.betas, own.eps, decay)
        zeros = np.zeros((rank, sides[1]) if sides[0] <= sides[1] else (sides[0], rank))
        P, m, v = s or [None, zeros, zeros]
        P = singular_basis(u, rank) if (t - 1) % gap == 0 else P
        made = oracle.galore_step(w, u, P, m, v, lr, t, decay, own)
        return oracle.Moments(made[0], (P, *made[1]))

    return rule


def _schedule_free(
    direction: Callable[..., tuple[Any, ...]], start: tuple[float, ...], warmup: int = 0, r: float = 0, power: float = 2
) -> Callable[..., oracle.Moments]:
    """x, z, the largest rate, the sum of weights, how many steps it is of, and the states of
    ``direction(w, u, states, t, decay)``. Steps without this tensor weigh as the last one."""

    def rule(w, u, s, lr, t, decay):
        x, z, largest, total, done, *states = s or [w, w, 0.0, 0.0, 0, *(np.full(w.shape, v) for v in start)]
        rate = lr * min(1.0, t / warmup) if warmup else lr
        d, *states = direction(w, u, states, t, decay)
        largest = max(largest, rate)
        weight = t**r * largest**power
        total += sum(i**r for i in range(done + 1, t + 1)) * largest**power
        z = z - rate * d
        x = x + (weight / total if total else 0.0) * (z - x)
        return oracle.Moments(0.1 * z + 0.9 * x, (x, z, largest, total, t, *states))

    return rule


def _adam_direction(w, u, s, t, decay):
    v = 0.999 * s[0] + 0.001 * u**2
    return u / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay * w, v


_SCHEDULE_FREE = {"warmup_steps": 5, "r": 0.5, "weight_lr_power": 1.0}
# Five iterations multiply a rounding by 485 at most.
_MUON = {"decoupled": True, "rtol": 1e-4, "atol": 5e-4}
_APOLLO = {"decoupled": True, "named": True, "rtol": 1e-4, "atol": 1e-4}
_GALORE = {"decoupled": True, "rtol": 1e-4, "atol": 1e-4}
_RMS = {"momentum": 0.5, "epsilon": 1e-6}
CASES: dict[str, Case] = {
    "Momentum": Case(optim.Momentum, _momentum(False), (0,), {"momentum": 0.9}, nn.Momentum),
    "Momentum-nesterov": Case(optim.Momentum, _momentum(True), (0,), {"momentum": 0.9, "use_nesterov": True}),
    "SGD": Case(optim.SGD, _sgd(0), (), {}, nn.SGD),
    "SGD-momentum": Case(optim.SGD, _sgd(0.9), (0,), {"momentum": 0.9}, nn.SGD),
    "SGD-dampening": Case(optim.SGD, _sgd(0.9, 0.3), (0,), {"momentum": 0.9, "dampening": 0.3}, nn.SGD),
    "SGD-nesterov": Case(optim.SGD, _sgd(0.9, 0, True), (0,), {"momentum": 0.9, "nesterov": True}, nn.SGD),
    "Adam": Case(optim.Adam, _adam(), (0, 0), {}, nn.Adam),
    "Adam-nesterov": Case(optim.Adam, _adam(nesterov=True), (0, 0), {"use_nesterov": True}, nn.Adam),
    "Adam-amsgrad": Case(optim.Adam, _adam(amsgrad=True), (0, 0, 0), {"use_amsgrad": True}, nn.Adam),
    "LazyAdam": Case(optim.LazyAdam, _adam(), (0, 0), {}, nn.LazyAdam),
    "AdamOffload": Case(optim.AdamOffload, _adam(), (0, 0), {}, nn.AdamOffload),
    "AdamWeightDecay": Case(
        optim.AdamWeightDecay, _adam_weight_decay, (0, 0), {}, nn.AdamWeightDecay, decoupled=True, scales=False
    ),
    # mindspore.mint has it, for Ascend alone: beside mindspore.experimental's in test_optimizers.py.
    "AdamW": Case(optim.AdamW, _adamw, (0, 0), {"weight_decay": 0.0}, decoupled=True, scales=False),
    "Lion": Case(optim.Lion, _lion, (0,), {}, decoupled=True, scales=False),
    # Beside PyTorch's in tests/pytorch and tests/ops/test_torch.py.
    "NAdamW": Case(optim.NAdamW, _nadamw, (0, 0), {"weight_decay": 0.0}, decoupled=True, scales=False),
    "AdamW-cautious": Case(
        optim.AdamW, _cautious_adamw, (0, 0), {"weight_decay": 0.0, "cautious": True}, decoupled=True, scales=False
    ),
    "AdEMAMix": Case(
        optim.AdEMAMix,
        _ademamix,
        (0, 0, 0),
        {"beta3": 0.99, "alpha_steps": 4.0, "beta3_steps": 30.0},
        decoupled=True,
        scales=False,
    ),
    "Adan": Case(optim.Adan, _adan, (0, 0, 0, 0), {}, decoupled=True, scales=False),
    "ScheduleFreeSGD": Case(optim.ScheduleFreeSGD, _schedule_free(lambda w, u, *_: (u,), ()), scales=False),
    "ScheduleFreeSGD-warmup": Case(
        optim.ScheduleFreeSGD, _schedule_free(lambda w, u, *_: (u,), (), 5, 0.5, 1.0), (), _SCHEDULE_FREE, scales=False
    ),
    "ScheduleFreeAdamW": Case(
        optim.ScheduleFreeAdamW, _schedule_free(_adam_direction, (0.0,)), decoupled=True, scales=False
    ),
    "ScheduleFreeAdamW-warmup": Case(
        optim.ScheduleFreeAdamW,
        _schedule_free(_adam_direction, (0.0,), 5, 0.5, 1.0),
        (),
        _SCHEDULE_FREE,
        decoupled=True,
        scales=False,
    ),
    "Lamb": Case(optim.Lamb, _lamb, (0, 0), {}, decoupled=True, scales=False),
    # Beside mindspore.nn.AdaFactor in test_adafactor.py: it knows neither groups nor a loss scale.
    "AdaFactor": Case(optim.AdaFactor, _adafactor(), (), {"relative_step": False, "beta1": None}, decoupled=True),
    "AdaFactor-moment": Case(
        optim.AdaFactor,
        _adafactor(beta1=0.9, scale_parameter=False, clip_threshold=0.5),
        (),
        {"relative_step": False, "beta1": 0.9, "scale_parameter": False, "clip_threshold": 0.5},
        decoupled=True,
    ),
    # Beside torch.optim.Muon in tests/pytorch/test_torch_muon.py, by the same op.
    "Muon": Case(optim.Muon, _muon(), (), {"weight_decay": 0.0}, **_MUON),
    "Muon-rms": Case(
        optim.Muon,
        _muon(momentum=0.8, nesterov=False, match_rms=True),
        (),
        {"weight_decay": 0.0, "momentum": 0.8, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"},
        **_MUON,
    ),
    # R may be a small sum of large products, of which float32 keeps fewer digits.
    "Apollo": Case(optim.Apollo, _apollo(2), (), {"rank": 2}, **_APOLLO),
    "Apollo-mini": Case(
        optim.Apollo,
        _apollo(1, 3, 5, tensor_wise=True, factor=16.0, limit=1.5, betas=(0.8, 0.9)),
        (),
        {
            "rank": 1,
            "update_proj_gap": 3,
            "seed": 5,
            "scale_type": "tensor",
            "scale": 16.0,
            "norm_growth": 1.5,
            "beta1": 0.8,
            "beta2": 0.9,
        },
        **_APOLLO,
    ),
    "GaLore": Case(optim.GaLore, _galore(2), (), {"rank": 2}, **_GALORE),
    "GaLore-refreshed": Case(
        optim.GaLore,
        _galore(3, 4, factor=1.0, betas=(0.8, 0.9)),
        (),
        {"rank": 3, "update_proj_gap": 4, "scale": 1.0, "beta1": 0.8, "beta2": 0.9},
        **_GALORE,
    ),
    "Adagrad": Case(optim.Adagrad, _adagrad, (0.1,), {}, nn.Adagrad),
    "Adagrad-slots": Case(optim.Adagrad, _frozen_adagrad, (0.1,), {"update_slots": False}),
    "ProximalAdagrad": Case(optim.ProximalAdagrad, _proximal(0, 0), (0.1,), {}, nn.ProximalAdagrad),
    "ProximalAdagrad-l1": Case(optim.ProximalAdagrad, _proximal(0.01, 0.02), (0.1,), {"l1": 0.01, "l2": 0.02}),
    "RMSProp": Case(optim.RMSProp, _rmsprop, (1, 0), _RMS, nn.RMSProp),
    # s - g^2 loses digits where the gradient has hardly any variance.
    "RMSProp-centered": Case(
        optim.RMSProp, _centered, (0, 1, 0), {**_RMS, "centered": True}, nn.RMSProp, rtol=1e-4, atol=1e-5
    ),
    "FTRL": Case(optim.FTRL, _ftrl(0, 0.02), (0.1, 0), {"l2": 0.02}, nn.FTRL, one_rate=True),
    "FTRL-l1": Case(optim.FTRL, _ftrl(0.01, 0.02), (0.1, 0), {"l1": 0.01, "l2": 0.02}, one_rate=True),
}
# One of each class.
CLASSES = [name for name in CASES if "-" not in name]


def parameters(shapes: dict[str, tuple[int, ...]] = SHAPES, dtypes: Sequence[Any] = (ms.float32,)) -> list[Parameter]:
    """Those of the shapes, with the dtypes in turn; the same values every time."""
    rng = np.random.default_rng(0)
    made = []
    for i, (name, shape) in enumerate(shapes.items()):
        made.append(Parameter(tensor(rng.standard_normal(shape), dtypes[i % len(dtypes)]), name=name))
    return made


def tensor(values: Any, dtype: Any = ms.float32) -> Tensor:
    """Cast by NumPy where that knows the dtype: MindSpore's casts run one by one."""
    if dtype == ms.bfloat16:
        return Tensor(np.asarray(values, np.float32)).astype(dtype)
    return Tensor(np.asarray(values, ms.dtype_to_nptype(dtype)))


def gradients(step: int, of: Iterable[Parameter], scale: float = 1.0) -> tuple[Tensor, ...]:
    """One for each parameter, in its dtype."""
    rng = np.random.default_rng(1000 + step)
    return tuple(tensor(scale * rng.standard_normal(p.shape), p.dtype) for p in of)


def array(tensor: Tensor) -> np.ndarray:
    """float64, whatever the dtype."""
    return tensor.asnumpy().astype(np.float64)


def arrays(tensors: Iterable[Tensor]) -> list[np.ndarray]:
    return [array(t) for t in tensors]


class Oracle:
    """The case's steps in float64, over a list of weights."""

    def __init__(self, case: Case, weights: Sequence[Tensor]) -> None:
        self.case, self.step = case, 0
        self.weights = arrays(weights)
        self.states: list[Any] = [[np.full(w.shape, float(x)) for x in case.start] for w in self.weights]
        if case.named:
            self.states = [[w.name] for w in weights]

    def __call__(
        self,
        grads: Sequence[Tensor],
        lr: Any = 0.1,
        decay: Any = 0.0,
        *,
        scale: float = 1.0,
        centralized: Sequence[bool] | None = None,
        only: Sequence[int] | None = None,
    ) -> None:
        """One number for all tensors, or one for each. `only`: those that are trained, in the gradients' order."""
        self.step += 1
        chosen = range(len(self.weights)) if only is None else only
        for i, g in zip(chosen, grads, strict=True):
            w = self.weights[i]
            rate, l2 = (float(x[i] if isinstance(x, Sequence) else x) for x in (lr, decay))
            flag = centralized is not None and centralized[i]
            inside = 0.0 if self.case.decoupled else l2
            u = oracle.ready_gradient(w, array(g), 1 / scale, 1.0, inside, flag)
            self.weights[i], self.states[i] = self.case.rule(w, u, self.states[i], rate, self.step, l2)

    def assert_weights(self, got: Sequence[Tensor]) -> None:
        assert_close(self.case, arrays(got), self.weights)


def assert_close(case: Case, got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Element by element."""
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=case.rtol, atol=case.atol)


def check_resumed(make: Callable[[list[Parameter]], Any], shapes: Any, folder: Path) -> None:
    """5 steps, a checkpoint and 5 more of another optimizer leave the bits of 10."""

    def steps(optimizer: Any, params: list[Parameter], which: range) -> None:
        for step in which:
            optimizer(gradients(step, params))

    whole, first, second = (parameters(shapes, (ms.float32, ms.float16)) for _ in range(3))
    steps(make(whole), whole, range(10))
    optimizer, path = make(first), str(folder / "saved.ckpt")
    steps(optimizer, first, range(5))
    ms.save_checkpoint(nn.CellList([optimizer]), path)
    resumed = make(second)
    assert ms.load_param_into_net(nn.CellList([resumed]), ms.load_checkpoint(path)) == ([], [])
    steps(resumed, second, range(5, 10))
    for a, b in zip(arrays(second), arrays(whole), strict=True):
        np.testing.assert_array_equal(a, b)
