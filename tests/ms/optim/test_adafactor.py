"""AdaFactor: what the other optimizers do not have. What they share is tested with them, by its cases in cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests import oracle
from tests.ms.optim.cases import array, arrays, gradients, parameters, tensor
from tests.ms.tiers import in_graph_mode, in_pynative_mode, standard

from boost_ext import boost, optim
from boost_ext.ms.optim.rebuild import parameter_groups, rebuild

CLOSE = {"rtol": 2e-5, "atol": 2e-6}
# mindspore.nn.AdaFactor makes no state for empty parameters, and decays gamma and beta.
FLAT = {"conv.weight": (4, 3, 3, 3), "fc.weight": (5, 7), "fc.bias": (5,), "table": (2, 5, 33), "temperature": ()}

# Ours and theirs, and what they are to the oracle.
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {"beta1": None},
    "warmup": {"beta1": None, "warmup_init": True},
    "moment": {"beta1": 0.9, "weight_decay": 0.1},
    "plain": {"beta1": 0.8, "learning_rate": 0.1, "relative_step": False, "scale_parameter": False},
    "clip": {"beta1": None, "clip_threshold": 0.3, "decay_rate": 0.5, "eps": (0.01, 2.0), "weight_decay": 0.1},
}


class Oracle:
    def __init__(self, params: list[Parameter], options: dict[str, Any]) -> None:
        own = dict(options)
        own.pop("relative_step", None)
        self.decay = own.pop("weight_decay", 0.0)
        self.hyper = oracle.AdaFactor(lr=own.pop("learning_rate", None), **own)
        self.weights = arrays(params)
        self.state = [oracle.adafactor_state(w.shape, self.hyper.beta1) for w in self.weights]
        self.step = 0

    def __call__(self, grads: Any, hyper: Any = None) -> None:
        self.step += 1
        for i, g in enumerate(arrays(grads)):
            self.weights[i], self.state[i] = oracle.adafactor_step(
                self.weights[i], g, self.state[i], self.step, self.decay, hyper or self.hyper
            )

    def assert_weights(self, params: Any) -> None:
        for got, exact in zip(arrays(params), self.weights, strict=True):
            np.testing.assert_allclose(got, exact, **CLOSE)


@pytest.mark.parametrize("name", OPTIONS)
def test_twenty_steps(mode: int, name: str) -> None:
    params = parameters({**FLAT, "nothing": (0, 3)})
    optimizer, expected = optim.AdaFactor(params, **OPTIONS[name]), Oracle(params, OPTIONS[name])
    for step in range(20):
        grads = gradients(step, params)
        assert optimizer(grads).asnumpy().tolist() == [True]
        expected(grads)
    expected.assert_weights(params)
    assert (optimizer.global_step.asnumpy(), optimizer.step.asnumpy()) == (20, 20)
    for i, state in enumerate(expected.state):
        matrices = params[i].ndim >= 2
        kept = [optimizer.exp_avg_sq_row[i], optimizer.exp_avg_sq_col[i]] if matrices else [optimizer.exp_avg_sq[i]]
        kept += [optimizer.exp_avg[i]] if optimizer.use_first_moment else []
        for got, exact in zip(arrays(kept), state, strict=True):
            np.testing.assert_allclose(got, exact, **CLOSE)


@pytest.mark.parametrize("name", OPTIONS)
@in_pynative_mode
def test_beside_mindspore(mode: int, name: str) -> None:
    ours, theirs = parameters(FLAT), parameters(FLAT)
    mine, other = optim.AdaFactor(ours, **OPTIONS[name]), nn.AdaFactor(theirs, **OPTIONS[name])
    for step in range(20):
        grads = gradients(step, ours)
        mine(grads)
        other(grads)
    for a, b in zip(arrays(ours), arrays(theirs), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def _one_step(cls: type[nn.Optimizer], *, name: str = "w", grouped: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    rng = np.random.default_rng(0)
    weight, grad = (Tensor(rng.standard_normal((3, 4)).astype(np.float32)) for _ in range(2))
    parameter = Parameter(weight, name=name)
    optimizer = cls([{"params": [parameter], **grouped} if grouped else parameter], beta1=None, **kwargs)
    optimizer((grad,))
    return parameter.asnumpy()


def test_mindspores_class_differs() -> None:
    """What docs/optimizers.md says of it. If this fails, MindSpore has repaired something."""
    plain = _one_step(nn.AdaFactor)
    np.testing.assert_array_equal(_one_step(nn.AdaFactor, grouped={"weight_decay": 0.5}), plain)
    assert not np.allclose(_one_step(optim.AdaFactor, grouped={"weight_decay": 0.5}), plain, rtol=1e-4)
    decayed = _one_step(nn.AdaFactor, weight_decay=0.5)
    np.testing.assert_array_equal(_one_step(nn.AdaFactor, weight_decay=0.5, name="bn.gamma"), decayed)
    np.testing.assert_allclose(_one_step(optim.AdaFactor, weight_decay=0.5, name="bn.gamma"), plain, **CLOSE)
    schedule = {"learning_rate": nn.ExponentialDecayLR(0.1, 0.5, 2), "relative_step": False}
    fixed = {"learning_rate": 0.1, "relative_step": False}
    unscaled = _one_step(nn.AdaFactor, **fixed, scale_parameter=False)
    np.testing.assert_allclose(_one_step(nn.AdaFactor, **schedule), unscaled, **CLOSE)
    np.testing.assert_allclose(_one_step(optim.AdaFactor, **schedule), _one_step(nn.AdaFactor, **fixed), **CLOSE)
    with pytest.raises(ValueError, match="cannot find fn match"):
        _one_step(nn.AdaFactor, grouped={"lr": 0.5}, **fixed)
    seen = {"eps": (1.0, 1e-3)}  # so that the size of a gradient can be seen
    plain = _one_step(nn.AdaFactor, **seen)
    np.testing.assert_array_equal(_one_step(nn.AdaFactor, **seen, loss_scale=64.0), plain)
    assert nn.AdaFactor(parameters(FLAT)).get_lr().asnumpy() == 0
    assert nn.AdaFactor(parameters(FLAT)).use_first_moment


def test_compression_beyond_float16() -> None:
    """V is inf there, and at most 65504 here, where the weight goes on."""
    moved = {}
    for cls in (nn.AdaFactor, optim.AdaFactor):
        weight = Parameter(Tensor(np.ones(3, np.float32)), name="w")
        optimizer = cls([weight], beta1=None, compression=True)
        grad = Tensor(np.full(3, 1e3, np.float32))
        optimizer((grad,))
        before = weight.asnumpy().copy()
        optimizer((grad,))
        moved[cls] = before - weight.asnumpy()
    assert (moved[nn.AdaFactor] == 0).all()
    assert (moved[optim.AdaFactor] > 1e-3).all()


def test_the_state_is_sublinear() -> None:
    """r + c numbers for r * c weights, and the clock."""
    params = [Parameter(Tensor(np.ones(s, np.float32)), name=n) for n, s in (("a", (300, 200)), ("b", (4, 20, 30)))]
    optimizer = optim.AdaFactor(params)
    weights = {id(p) for p in params}
    size = sum(p.size for p in optimizer.get_parameters() if id(p) not in weights)
    placeholders, clocks = 2, 3  # exp_avg_sq; global_step, afactor_step and learning_rate
    assert size == (300 + 200) + 4 * (20 + 30) + placeholders + clocks
    assert size < sum(p.size for p in params) / 50
    with_moment = optim.AdaFactor(params, beta1=0.9)
    assert sum(p.size for p in with_moment.exp_avg) == sum(p.size for p in params)


@pytest.mark.parametrize("name", ["defaults", "moment"])
@pytest.mark.parametrize("from_mindspore", [True, False], ids=["from", "to"])
def test_checkpoints(name: str, from_mindspore: bool, tmp_path: Path) -> None:
    """Five steps of either and five of the other are ten of the oracle."""
    options = OPTIONS[name]
    params = parameters(FLAT), parameters(FLAT)
    classes = (nn.AdaFactor, optim.AdaFactor) if from_mindspore else (optim.AdaFactor, nn.AdaFactor)
    first, second = (cls(p, **options) for cls, p in zip(classes, params, strict=True))
    expected = Oracle(params[0], options)
    for step in range(5):
        grads = gradients(step, params[0])
        first(grads)
        expected(grads)
    ms.save_checkpoint(first, str(tmp_path / "a.ckpt"))
    missing, unused = ms.load_param_into_net(second, ms.load_checkpoint(str(tmp_path / "a.ckpt")))
    # Without a first moment mindspore.nn.AdaFactor keeps a number that it does not use.
    assert {n.partition("$")[0] for n in [*missing, *unused]} <= {"Parameter"}
    for step in range(5, 10):
        grads = gradients(step, params[1])
        second(grads)
        expected(grads)
    expected.assert_weights(params[1])


def test_names_shapes_and_dtypes_are_mindspores() -> None:
    """Of half parameters as well, but for float32 state."""
    for options in ({}, {"compression": True}):
        ours, theirs = (
            {p.name: (p.shape, p.dtype) for p in cls(parameters(FLAT), beta1=0.9, **options).get_parameters()}
            for cls in (optim.AdaFactor, nn.AdaFactor)
        )
        assert ours.keys() == theirs.keys()
        different = {n for n in ours if ours[n] != theirs[n]}
        assert different == ({n for n in ours if n.startswith("exp_avg.")} if options else set())


def test_compression(mode: int) -> None:
    """float16 for what has the size of a parameter: moments, and V of those of one axis. Nothing that is lost there is
    lost at once."""
    params = parameters(FLAT)
    options = {"beta1": 0.9, "learning_rate": 0.1, "relative_step": False}
    optimizer = optim.AdaFactor(params, compression=True, **options)
    assert {str(p.dtype) for p in optimizer.exp_avg} == {"Float16"}
    dtypes = [str(p.dtype) for p in optimizer.exp_avg_sq]
    assert dtypes == ["Float32" if p.ndim > 1 else "Float16" for p in params]
    assert {str(p.dtype) for p in (*optimizer.exp_avg_sq_row, *optimizer.exp_avg_sq_col)} == {"Float32"}
    expected = Oracle(params, options)
    for step in range(6):
        grads = gradients(step, params)
        optimizer(grads)
        expected(grads)
    for got, exact in zip(arrays(params), expected.weights, strict=True):
        np.testing.assert_allclose(got, exact, rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"warmup_init": True}], ids=["", "warmup"])
@standard(lambda p: not p.graph or bool(p.options))
def test_get_lr(mode: int, options: dict[str, Any]) -> None:
    """The rate of the step to come."""
    params = parameters()
    optimizer = optim.AdaFactor(params, **options)
    for t in (1, 2, 3):
        rate = min(1e-6 * t if options else 1e-2, t**-0.5)
        assert optimizer.get_lr().asnumpy() == pytest.approx(rate, rel=1e-6)
        optimizer(gradients(t, params))
    optimizer.global_step.set_data(Tensor([10**6], ms.int32))
    assert optimizer.get_lr().asnumpy() == pytest.approx(1e-3, rel=1e-5)
    assert optim.AdaFactor(params, 0.25, relative_step=False).get_lr().asnumpy() == 0.25


@pytest.mark.parametrize("how", ["list", "schedule", "tensor"])
def test_learning_rates_are_scaled(mode: int, how: str) -> None:
    """Those that change, too, by the size of the parameter."""
    values = [0.1, 0.1, 0.05, 0.05]
    rate = {
        "list": values,
        "schedule": nn.ExponentialDecayLR(0.1, 0.5, 2, True),
        "tensor": Tensor(values, ms.float32),
    }[how]
    params = parameters(FLAT)
    optimizer, expected = optim.AdaFactor(params, rate, relative_step=False), Oracle(params, {"learning_rate": 0.1})
    for step, value in enumerate(values):
        grads = gradients(step, params)
        optimizer(grads)
        expected(grads, oracle.AdaFactor(lr=value))
    expected.assert_weights(params)


@pytest.mark.parametrize("options", [{}, {"beta1": 0.9, "compression": True}], ids=["", "compressed"])
@standard(lambda p: not p.graph or bool(p.options))
def test_an_overflow_writes_nothing(mode: int, options: dict[str, Any]) -> None:
    params = parameters(dtypes=(ms.float32, ms.float16, ms.bfloat16))
    optimizer = optim.AdaFactor(params, **options)
    optimizer(gradients(0, params))
    everything = list(optimizer.get_parameters())
    before = arrays(everything)
    bad = tuple(tensor(np.full(p.shape, np.inf), p.dtype) for p in params)
    scale = Tensor([1024.0], ms.float32)
    optimizer.step_unless(Tensor([True]), scale, bad)
    for p, was in zip(everything, before, strict=True):
        np.testing.assert_array_equal(array(p), was, err_msg=p.name)
    optimizer.step_unless(Tensor([False]), scale, gradients(1, params, 1024.0))
    assert optimizer.global_step.asnumpy() == [2]
    assert all(np.isfinite(a).all() for a in arrays(everything))


def test_the_loss_scale_is_taken_out(mode: int) -> None:
    """eps shows it: without it an Adafactor step does not depend on the size of a gradient."""
    one, other = parameters(FLAT), parameters(FLAT)
    eps = (1.0, 1e-3)
    plain, scaled = optim.AdaFactor(one, eps=eps), optim.AdaFactor(other, eps=eps, loss_scale=64.0)
    for step in range(3):
        plain(gradients(step, one))
        scaled(gradients(step, one, 64.0))
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)


@in_graph_mode
def test_five_hundred_parameters(mode: int) -> None:
    params = parameters({f"p{i}": ((17, 3), (4,), ())[i % 3] for i in range(500)}, (ms.float32, ms.float16))
    optimizer, expected = optim.AdaFactor(params, beta1=0.9), Oracle(params, {"beta1": 0.9})
    for step in range(2):
        grads = gradients(step, params)
        optimizer(grads)
        expected(grads)
    expected.assert_weights([optimizer.masters[i] for i in range(len(params))])


def test_rebuilt_with_a_relative_step() -> None:
    """Which has no learning rate to hand on."""
    params = parameters()
    first, expected = optim.AdaFactor(params), Oracle(params, {})
    first(gradients(0, params))
    expected(gradients(0, params))
    second = rebuild(first, parameter_groups(first))
    assert (second.init_learning_rate, second.init_args) == (None, first.init_args)
    frozen = boost.FreezeOpt(second, train_parameter_groups=[params, params[3:]])
    for step in (1, 2):
        frozen.opts[0](gradients(step, params))
        expected(gradients(step, params))
    expected.assert_weights(params)


def test_the_state_begins_anew() -> None:
    params = parameters()
    optimizer, fresh = (optim.AdaFactor(parameters(), beta1=0.9) for _ in range(2))
    optimizer(gradients(0, params))
    optimizer.init_ada_factor_state(0.9)
    for name in ("exp_avg", "exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"):
        for a, b in zip(getattr(optimizer, name), getattr(fresh, name), strict=True):
            np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    optimizer(gradients(1, params))
    assert all((array(p) != 0).any() for p in optimizer.exp_avg if p.size)
    with pytest.raises(ValueError, match=r"^AdaFactor: beta1 must be what it was at first, a number or None, got None"):
        optimizer.init_ada_factor_state(None)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"learning_rate": 0.1}, ValueError, "learning_rate must be None with relative_step, which sets it, got 0.1"),
    ({"relative_step": False}, ValueError, "learning_rate must be given without relative_step, got None"),
    (
        {"learning_rate": 0.1, "relative_step": False, "warmup_init": True},
        ValueError,
        "warmup_init must come with relative_step, got it alone",
    ),
    ({"eps": 1e-3}, TypeError, "eps must be a tuple of two floats, got float"),
    ({"eps": (1e-3,)}, ValueError, r"eps must be a tuple of two floats, got \(0.001,\)"),
    ({"eps": (1e-30, 0.0)}, ValueError, r"eps\[1\] must be finite and > 0, got 0.0"),
    ({"eps": (1, 1e-3)}, TypeError, r"eps\[0\] must be a float, got int"),
    ({"beta1": 0.0}, ValueError, r"beta1 must be in \(0, 1\), got 0.0"),
    ({"beta1": 1}, TypeError, "beta1 must be a float, got int"),
    ({"clip_threshold": Tensor(0.0)}, ValueError, "clip_threshold must be finite and > 0, got 0.0"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), REFUSED)
def test_what_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^AdaFactor: {text}$"):
        optim.AdaFactor(parameters(), **arguments)


def test_who_else_refuses_it() -> None:
    params = parameters()
    with pytest.raises(ValueError, match=r"^AdaFactor: groups must have no lr with relative_step"):
        optim.AdaFactor([{"params": params, "lr": 0.1}])
    with pytest.raises(TypeError, match=r"^LARS: AdaFactor decouples its weight decay"):
        optim.LARS(optim.AdaFactor(params))


def test_tensors_for_numbers() -> None:
    """As documented for these two."""
    one, other = parameters(), parameters()
    optim.AdaFactor(one, clip_threshold=Tensor(0.5), decay_rate=Tensor(0.75))(gradients(0, one))
    optim.AdaFactor(other, clip_threshold=0.5, decay_rate=0.75)(gradients(0, other))
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)
