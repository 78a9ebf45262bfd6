"""Signatures, checks and the methods of the base class: what tinyms.optimizers documents."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.optim.cases import CASES, CLASSES, array, arrays, gradients, parameters
from tests.ms.tiers import standard

from boost_ext import _core, optim
from boost_ext import ops as array_ops

WITHOUT_ROW = ("adafactor", "muon", "apollo", "galore")

_ADAM = {
    "params": ...,
    "learning_rate": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "use_locking": False,
    "use_nesterov": False,
    "weight_decay": 0.0,
    "loss_scale": 1.0,
}
_DECOUPLED = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "weight_decay": 0.0}
_MASTER = {"master": "float32"}  # ours, by keyword only
_STATE = {"state_dtype": "float32", "state_seed": 0, **_MASTER}
_CAUTIOUS = {"cautious": False, **_STATE}
_AVERAGE = {"warmup_steps": 0, "r": 0.0, "weight_lr_power": 2.0, **_MASTER}
_PROXIMAL = {"l1": 0.0, "l2": 0.0, "use_locking": False, "loss_scale": 1.0, "weight_decay": 0.0, **_MASTER}
# As documented, in this order; ... is no default.
SIGNATURES: dict[str, dict[str, Any]] = {
    "Momentum": {
        "params": ...,
        "learning_rate": ...,
        "momentum": ...,
        "weight_decay": 0.0,
        "loss_scale": 1.0,
        "use_nesterov": False,
        **_CAUTIOUS,
    },
    "SGD": {
        "params": ...,
        "learning_rate": 0.1,
        "momentum": 0.0,
        "dampening": 0.0,
        "weight_decay": 0.0,
        "nesterov": False,
        "loss_scale": 1.0,
        **_MASTER,
    },
    "Adam": {**_ADAM, "use_amsgrad": False, **_CAUTIOUS},  # the last one is of mindspore.nn
    "LazyAdam": {**_ADAM, **_MASTER},
    "AdamOffload": {**_ADAM, **_MASTER},
    "AdamWeightDecay": {"params": ..., "learning_rate": 1e-3, **_DECOUPLED, **_CAUTIOUS},
    "AdamW": {"params": ..., "learning_rate": 1e-3, **_DECOUPLED, "eps": 1e-8, "weight_decay": 0.01, **_CAUTIOUS},
    "Lion": {"params": ..., "learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, **_CAUTIOUS},
    "NAdamW": {
        "params": ...,
        "learning_rate": 2e-3,
        **_DECOUPLED,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "momentum_decay": 0.004,
        **_CAUTIOUS,
    },
    "AdEMAMix": {
        "params": ...,
        "learning_rate": 1e-3,
        **_DECOUPLED,
        "eps": 1e-8,
        "beta3": 0.9999,
        "alpha": 5.0,
        "alpha_steps": 0.0,
        "beta3_steps": 0.0,
        "cautious": False,
        **_MASTER,
    },
    "Adan": {
        "params": ...,
        "learning_rate": 1e-3,
        "beta1": 0.98,
        "beta2": 0.92,
        "beta3": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "cautious": False,
        **_MASTER,
    },
    "ScheduleFreeSGD": {"params": ..., "learning_rate": 1.0, "momentum": 0.9, "weight_decay": 0.0, **_AVERAGE},
    "ScheduleFreeAdamW": {"params": ..., "learning_rate": 0.0025, **_DECOUPLED, "eps": 1e-8, **_AVERAGE},
    "Lamb": {"params": ..., "learning_rate": ..., **_DECOUPLED, **_STATE},
    "AdaFactor": {
        "params": ...,
        "learning_rate": None,
        "eps": (1e-30, 1e-3),
        "clip_threshold": 1.0,
        "decay_rate": 0.8,
        "beta1": None,
        "weight_decay": 0.0,
        "scale_parameter": True,
        "relative_step": True,
        "warmup_init": False,
        "compression": False,
        "loss_scale": 1.0,
    },
    "Muon": {
        "params": ...,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "momentum": 0.95,
        "nesterov": True,
        "eps": 1e-7,
        "ns_steps": 5,
        "adjust_lr_fn": "original",
        "adamw": (),
        "beta1": 0.9,
        "beta2": 0.999,
        "adamw_eps": 1e-8,
        "loss_scale": 1.0,
    },
    "Apollo": {
        "params": ...,
        "learning_rate": 1e-3,
        "weight_decay": 0.0,
        "rank": None,
        "scale_type": "channel",
        "scale": 1.0,
        "norm_growth": 1.01,
        "update_proj_gap": 200,
        "seed": 0,
        "adamw": (),
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "loss_scale": 1.0,
    },
    "GaLore": {
        "params": ...,
        "learning_rate": 1e-3,
        "weight_decay": 0.0,
        "rank": None,
        "scale": 0.25,
        "update_proj_gap": 200,
        "seed": 0,
        "adamw": (),
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "loss_scale": 1.0,
    },
    "Adagrad": {
        "params": ...,
        "accum": 0.1,
        "learning_rate": 0.001,
        "update_slots": True,
        "loss_scale": 1.0,
        "weight_decay": 0.0,
        **_MASTER,
    },
    "ProximalAdagrad": {"params": ..., "accum": 0.1, "learning_rate": 0.001, **_PROXIMAL},
    "RMSProp": {
        "params": ...,
        "learning_rate": 0.1,
        "decay": 0.9,
        "momentum": 0.0,
        "epsilon": 1e-10,
        "use_locking": False,
        "centered": False,
        "loss_scale": 1.0,
        "weight_decay": 0.0,
        **_MASTER,
    },
    "FTRL": {"params": ..., "initial_accum": 0.1, "learning_rate": 0.001, "lr_power": -0.5, **_PROXIMAL},
}


@pytest.mark.parametrize("name", CLASSES)
def test_signature(name: str) -> None:
    found = inspect.signature(getattr(optim, name).__init__).parameters  # of a class, Python < 3.11.3 may show __new__
    got = {n: ... if p.default is inspect.Parameter.empty else p.default for n, p in found.items() if n != "self"}
    assert list(got.items()) == list(SIGNATURES[name].items())


# name of the argument -> (a wrong type, a value out of range, what the message says of the range)
FLOATS: dict[str, tuple[Any, float, str]] = {
    "momentum": ("0.9", -0.1, r"must be (finite and >= 0|in \(0, 1\))"),
    "dampening": ("0", -0.1, "must be finite and >= 0"),
    "beta1": (1, 1.0, r"must be in [\[(]0, 1\)"),
    "beta2": (0, -0.1, r"must be in \[0, 1\)"),
    "beta3": (1, 1.0, r"must be in [\[(]0, 1\)"),
    "alpha": (5, -1.0, "must be finite and >= 0"),
    "alpha_steps": (5, -1.0, "must be finite and >= 0"),
    "beta3_steps": (5, -1.0, "must be finite and >= 0"),
    "momentum_decay": (0, -0.1, "must be finite and >= 0"),
    "eps": (1, 0.0, "must be finite and > 0"),
    "adamw_eps": (1, 0.0, "must be finite and > 0"),
    "clip_threshold": (1, 0.0, "must be finite and > 0"),
    "decay_rate": (1, 1.0, r"must be in \(0, 1\)"),
    "epsilon": (1, -1.0, "must be finite and > 0"),
    "decay": (1, -0.1, "must be finite and >= 0"),
    "accum": (1, -0.1, "must be finite and >= 0"),
    "initial_accum": (1, float("inf"), "must be finite and >= 0"),
    "l1": (0, float("nan"), "must be finite and >= 0"),
    "l2": (None, -0.1, "must be finite and >= 0"),
    "r": (0, -0.5, "must be finite and >= 0"),
    "weight_lr_power": (2, -1.0, "must be finite and >= 0"),
    "lr_power": (0, 0.5, "must be <= 0"),
}


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (n, a)
        for n in CLASSES
        for a in FLOATS
        if isinstance(SIGNATURES[n].get(a, ()), float) or SIGNATURES[n].get(a) is ...
    ],
)
def test_hyperparameters(name: str, argument: str) -> None:
    wrong, outside, message = FLOATS[argument]
    with pytest.raises(TypeError, match=f"^{name}: {argument} must be a float, got {type(wrong).__name__}$"):
        CASES[name].ours(parameters(), **_required(name) | {argument: wrong})
    with pytest.raises(ValueError, match=f"^{name}: {argument} {message}, got"):
        CASES[name].ours(parameters(), **_required(name) | {argument: outside})


@pytest.mark.parametrize("name", [n for n in CLASSES if CASES[n].ours.rule not in WITHOUT_ROW])
def test_a_constructor_refuses_what_the_first_step_would(name: str) -> None:
    """Of all hyperparameters of the rule, and nothing else."""
    rule, ones = CASES[name].ours.rule, np.ones(3, np.float32)
    facts = _core.rule_facts(rule)
    given = {"step": 1} if facts["corrected"] else {}
    given |= {hyper: 0.5 for hyper, default in facts["hyper"].items() if default is None}
    states = [[ones.copy()] for _ in facts["states"]]

    def refused(make: Any, *args: Any, **kwargs: Any) -> bool:
        try:
            make(*args, **kwargs)
        except ValueError:
            return True
        return False

    floats = [hyper for hyper, b in facts["bounds"].items() if b != "flag" and hyper != "averaging_weight"]
    for hyper, value in itertools.product(floats, (-0.5, 0.0, 0.5, 1.0, 2.0, np.inf, np.nan)):
        by_op = refused(
            getattr(array_ops, f"{rule}_step"), [ones.copy()], [ones], *states, lr=0.1, **given | {hyper: value}
        )
        by_class = refused(CASES[name].ours, parameters(), **_required(name) | {hyper: value})
        assert by_class == by_op, (hyper, value)


def _required(name: str) -> dict[str, Any]:
    given = {"learning_rate": 0.1, "momentum": 0.9}
    return {a: given[a] for a, default in SIGNATURES[name].items() if default is ... and a != "params"}


_FLAGS = ("use_locking", "use_nesterov", "nesterov", "use_amsgrad", "update_slots", "centered", "cautious")
_FLAGS += ("scale_parameter", "relative_step", "warmup_init", "compression")


@pytest.mark.parametrize(("name", "argument"), [(n, a) for n in CLASSES for a in _FLAGS if a in SIGNATURES[n]])
def test_flags(name: str, argument: str) -> None:
    with pytest.raises(TypeError, match=f"^{name}: {argument} must be a bool, got int$"):
        CASES[name].ours(parameters(), **_required(name) | {argument: 1})


@pytest.mark.parametrize("name", CLASSES)
def test_what_all_of_them_refuse(name: str) -> None:
    """These checks are mindspore.nn.Optimizer's."""

    def make(params: Any, **kwargs: Any) -> nn.Optimizer:
        return CASES[name].make(params, **kwargs)

    for rate in (None, nn.ReLU()):
        with pytest.raises(ValueError if rate is None and name == "AdaFactor" else TypeError):
            make(parameters(), learning_rate=rate)
    with pytest.raises(ValueError, match="learning rate"):
        make(parameters(), learning_rate=-0.1)
    with pytest.raises(ValueError, match=r"(?i)dim"):
        make(parameters(), learning_rate=Tensor(np.ones((2, 2)), ms.float32))
    for params in ([Tensor([1.0])], [1], parameters()[0]):
        with pytest.raises(TypeError):
            make(params)
    with pytest.raises(ValueError, match="must not be empty"):
        make([])
    with pytest.raises(TypeError, match=r"(?i)weight_decay"):
        make(parameters(), weight_decay="0")
    with pytest.raises(ValueError, match="weight_decay"):
        make(parameters(), weight_decay=-0.1)
    if CASES[name].scales:
        with pytest.raises(TypeError, match="loss_scale"):
            make(parameters(), loss_scale="1")
        for scale in (0.0, -1.0):
            with pytest.raises(ValueError, match="loss_scale"):
                make(parameters(), loss_scale=scale)
    with pytest.raises(ValueError, match="length of order parameters"):
        make([{"params": parameters()}, {"order_params": parameters()[:2]}])


def test_what_one_of_them_refuses() -> None:
    params = parameters()
    for arguments in ({"momentum": 0.0}, {"momentum": 0.9, "dampening": 0.1}):
        with pytest.raises(ValueError, match=r"^SGD: nesterov needs momentum > 0 and dampening 0, got momentum"):
            optim.SGD(params, 0.1, nesterov=True, **arguments)
    with pytest.raises(TypeError, match=r"^SGD: weight_decay must be a float or an int, got a Cell$"):
        optim.SGD(params, 0.1, weight_decay=nn.ExponentialDecayLR(0.1, 0.5, 2))
    assert optim.SGD(params, 0.1, momentum=1, dampening=0).momentum.asnumpy() == 1, "integers, as mindspore.nn.SGD"
    for rate in ([0.1, 0.2], nn.ExponentialDecayLR(0.1, 0.5, 2)):
        with pytest.raises(ValueError, match=r"^FTRL: learning_rate must be one number for all steps and groups"):
            optim.FTRL(params, learning_rate=rate)
    with pytest.raises(ValueError, match=r"^FTRL: learning_rate must be one number"):
        optim.FTRL([{"params": params, "lr": 0.1}], learning_rate=0.1)
    with pytest.raises(TypeError, match=r"^FTRL: learning_rate must be a float, got int$"):
        optim.FTRL(params, learning_rate=1)


WRONG = {"size": (Tensor([1.0, 2.0], ms.float32), 5, "temperature, (), got (2,)")}
WRONG |= {"shape": (Tensor(np.zeros((7, 5), np.float32)), 3, "fc.weight, (5, 7), got (7, 5)")}
WRONG |= {"axes": (Tensor(np.zeros((4, 3, 9), np.float32)), 0, "conv.weight, (4, 3, 3, 3), got (4, 3, 9)")}


@pytest.mark.parametrize("name", ["Adam", "AdaFactor"])
@pytest.mark.parametrize("wrong", WRONG)
@standard(lambda p: not p.graph or (p.name, p.wrong) in (("Adam", "size"), ("AdaFactor", "axes")))
def test_a_gradient_of_another_shape_is_refused(mode: int, name: str, wrong: str) -> None:
    params = parameters()
    optimizer = CASES[name].make(params)
    everything = list(optimizer.get_parameters())
    before = arrays(everything)
    gradient, i, what = WRONG[wrong]
    grads = list(gradients(0, params))
    grads[i] = gradient
    with pytest.raises(ValueError, match=re.escape(f"{name}: gradients[{i}] must have the shape of {what}")):
        optimizer(tuple(grads))
    for a, b in zip(arrays(everything), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_number_of_gradients(mode: int) -> None:
    params = parameters()
    optimizer = CASES["Adam"].make(params)
    grads = gradients(0, params)
    for wrong in (grads[:-1], grads + grads[:1]):
        with pytest.raises(ValueError, match=f"^Adam: gradients must be 7, one a parameter, got {len(wrong)}$"):
            optimizer(wrong)


def test_a_gradient_of_another_shape_in_a_cell(capfd: pytest.CaptureFixture[str]) -> None:
    """The native call says it where Python does not see it: in a step of boost_ext's cells, and in a graph."""
    params = parameters({"fc.weight": (5, 7)})
    optimizer = CASES["SGD"].make(params)
    skip, scale, wrong = Tensor([False]), Tensor([1.0], ms.float32), (Tensor(np.zeros((7, 5), np.float32)),)
    message = "optimizer_step: grads[0] must have the shape of its weight, (5, 7), got (7, 5)"
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.step_unless(skip, scale, wrong)
    with pytest.raises(RuntimeError):
        ms.jit(optimizer.step_unless)(skip, scale, wrong)
    assert message in capfd.readouterr().err


def test_host_bytes() -> None:
    shapes = {"a": (3, 4), "b": (5,)}
    assert optim.AdamOffload(parameters(shapes)).host_bytes == 2 * 4 * 17
    assert optim.AdamOffload(parameters(shapes, (ms.float16, ms.float32))).host_bytes == 2 * 4 * 17 + 4 * 12
    half = parameters(shapes, (ms.bfloat16, ms.float32))
    assert optim.AdamOffload(half, master="split8").host_bytes == 2 * 4 * 17 + 12


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_recorded(name: str) -> None:
    params = parameters()
    optimizer = CASES[name].make(params, 0.25, weight_decay=0.5)
    assert optimizer.init_params == {"params": params}
    assert optimizer.init_learning_rate == 0.25
    expected = {n: d for n, d in SIGNATURES[name].items() if n not in ("params", "learning_rate")}
    assert optimizer.init_args == expected | CASES[name].arguments | {"weight_decay": 0.5}


def test_the_learning_rate_that_is_recorded() -> None:
    assert optim.Adam(parameters(), Tensor([0.5, 0.25])).init_learning_rate == [0.5, 0.25]
    assert optim.Adam(parameters(), nn.ExponentialDecayLR(0.1, 0.5, 2)).init_learning_rate is None
    assert optim.Adam(parameters()).init_learning_rate == 1e-3


class TestMethods:
    def test_get_lr(self, mode: int) -> None:
        """The rate of the step to come."""
        params = parameters()
        assert optim.Adam(params, 0.25).get_lr().asnumpy() == 0.25
        optimizer = optim.Adam(params, [0.5, 0.25, 0.125])
        for rate in (0.5, 0.25):
            assert optimizer.get_lr().asnumpy() == rate
            optimizer(gradients(0, params))
        wide, narrow = params[:1], params[1:]
        groups = optim.Adam([{"params": wide, "lr": 0.5}, {"params": narrow}], [0.25, 0.125])
        groups(gradients(0, params))
        assert [float(r.asnumpy()) for r in groups.get_lr()] == [0.5] + [0.125] * len(narrow)

    def test_get_lr_parameter(self) -> None:
        params = parameters()
        schedule = nn.ExponentialDecayLR(0.1, 0.5, 2)
        optimizer = optim.Momentum([{"params": params[:2], "lr": 0.5}, {"params": params[2:]}], 0.25, 0.9)
        assert optimizer.get_lr_parameter(params[0]).asnumpy() == 0.5
        assert [r.asnumpy() for r in optimizer.get_lr_parameter(params[1:3])] == [0.5, 0.25]
        assert optim.Momentum(params, schedule, 0.9).get_lr_parameter(params[0]) is schedule
        with pytest.raises(ValueError, match="is not in optimizer"):
            optimizer.get_lr_parameter(Parameter(Tensor([1.0]), name="other"))
        with pytest.raises(TypeError):
            optimizer.get_lr_parameter("conv.weight")

    def test_a_group_learning_rate_that_was_assigned(self, mode: int) -> None:
        params = parameters()
        optimizer = optim.SGD([{"params": params[:1], "lr": 0.5}, {"params": params[1:]}], 0.25)
        grads = gradients(0, params)
        optimizer(grads)
        before = arrays(params)
        ops.assign(optimizer.get_lr_parameter(params[0]), Tensor(2.0, ms.float32))
        optimizer(grads)
        for i, (p, old, g) in enumerate(zip(params, before, arrays(grads), strict=True)):
            np.testing.assert_allclose(array(p), old - (2.0 if i == 0 else 0.25) * g, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("grouped", [False, True], ids=["list", "groups"])
    def test_decay_weight(self, grouped: bool) -> None:
        params = [p for p in parameters() if 0 not in p.shape]
        optimizer = optim.Momentum([{"params": params}] if grouped else params, 0.1, 0.9, weight_decay=0.5)
        grads = gradients(0, params)
        for p, g, decayed in zip(params, grads, optimizer.decay_weight(grads), strict=True):
            decay = 0.5 if grouped or not ("gamma" in p.name or "beta" in p.name) else 0.0
            np.testing.assert_allclose(array(decayed), array(g) + decay * array(p), rtol=1e-6, atol=1e-6)

    def test_gradients_centralization(self, mode: int) -> None:
        """On the CPU and for three channels, which mindspore.nn cannot."""
        params = parameters()
        grads = gradients(0, params)
        groups = [{"params": params[:1], "grad_centralization": True}, {"params": params[1:]}]
        for g, c in zip(grads, optim.Adam(groups).gradients_centralization(grads), strict=True):
            expected = array(g)
            if g.shape == (4, 3, 3, 3):
                expected = expected - expected.mean(axis=(1, 2, 3), keepdims=True)
            np.testing.assert_allclose(array(c), expected, rtol=1e-5, atol=1e-6)
        assert optim.Adam(params).gradients_centralization(grads) is grads

    def test_scale_grad(self) -> None:
        params = parameters()
        grads = gradients(0, params)
        for g, scaled in zip(grads, optim.Adam(params, loss_scale=4.0).scale_grad(grads), strict=True):
            np.testing.assert_array_equal(array(scaled), array(g) / 4)
        assert optim.Adam(params).scale_grad(grads) is grads

    @pytest.mark.parametrize("name", CLASSES)
    def test_target_and_unique(self, name: str) -> None:
        optimizer = CASES[name].make(parameters())
        assert (optimizer.target, optimizer.unique) == ("CPU", True)
        optimizer.target = "CPU"
        with pytest.raises(TypeError, match="must be string"):
            optimizer.target = 1
        with pytest.raises(ValueError, match="must be one of"):
            optimizer.target = "TPU"
        with pytest.raises(ValueError, match="cannot be set to 'GPU' or 'Ascend'"):
            optimizer.target = "GPU"
        optimizer.unique = False
        assert not optimizer.unique
        with pytest.raises(TypeError, match="must be bool"):
            optimizer.unique = 1
