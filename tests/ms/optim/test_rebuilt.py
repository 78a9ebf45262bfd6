"""Our optimizers constructed again over other groups, and narrowed to some parameters for gradient freezing."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests.ms.optim.cases import CASES, CLASSES, DECAYED, SHAPES, Oracle, arrays, gradients, parameters

from boost_ext import boost
from boost_ext.ms.core.optimizer_copy import restrict
from boost_ext.ms.optim.rebuild import parameter_groups, rebuild

SOME = (4, 0, 3, 5)  # in another order than the optimizer's


def decays(name: str, value: float = 0.01) -> list[float]:
    return [value * (flag or name == "FTRL") for flag in DECAYED]


# How an optimizer is made again does not depend on the mode.
IN_BOTH = [(ms.PYNATIVE_MODE, name) for name in CLASSES] + [(ms.GRAPH_MODE, name) for name in ("Adam", "SGD")]


@pytest.mark.parametrize(("mode", "name"), IN_BOTH, indirect=["mode"])
def test_a_rebuilt_optimizer_goes_on(mode: int, name: str) -> None:
    """With masters: two of the parameters are half."""
    case, params = CASES[name], parameters(dtypes=(ms.float32, ms.float32, ms.float16))
    expected = Oracle(case, params)
    first = case.make(params, weight_decay=0.01)
    first(gradients(0, params))
    second = rebuild(first, parameter_groups(first))
    assert type(second) is type(first)
    assert second.init_args == first.init_args
    for step in (1, 2):
        second(gradients(step, params))
    for step in range(3):
        expected(gradients(step, params), 0.1, decays(name))
    expected.assert_weights([second.masters[i] for i in range(len(params))])
    assert (first.global_step.asnumpy(), second.global_step.asnumpy()) == (1, 3)


@pytest.mark.parametrize("name", CLASSES)
def test_optimizer_process(name: str) -> None:
    """Centralization comes with the groups; gamma and beta are not decayed, as before."""
    case, params = CASES[name], parameters()

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            for i, p in enumerate(params):
                setattr(self, f"p{i}", p)

    first = case.make(params, weight_decay=0.01)
    process = boost.OptimizerProcess(first)
    process.add_grad_centralization(Net())
    second = process.generate_new_optimizer()
    assert type(second) is case.ours, "the class centralizes by itself"
    expected = Oracle(case, params)
    wide = [p.ndim >= 2 for p in params]
    for step in range(3):
        second(gradients(step, params))
        expected(gradients(step, params), 0.1, decays(name), centralized=wide)
    expected.assert_weights(params)


class Both(nn.Cell):
    """The full and the narrowed optimizer in one graph."""

    def __init__(self, full: nn.Optimizer, some: nn.Optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.full, self.some = full, some

    def construct(self, step: Tensor, grads: Any, few: Any) -> Tensor:
        if step[0] % 2 == 1:
            self.some(few)
        else:
            self.full(grads)
        return step


def groups_of(params: list[Parameter], rate: float | None) -> list[dict[str, Any]]:
    """Interleaved: conv.weight and fc.bias (kept) in one, with centralization."""
    first = {"params": [params[0], params[4]], "weight_decay": 0.03, "grad_centralization": True}
    if rate is not None:
        first["lr"] = rate
    return [first, {"params": [p for i, p in enumerate(params) if i not in (0, 4)]}, {"order_params": params}]


MODES = [pytest.param(ms.PYNATIVE_MODE, name, id=f"pynative-{name}") for name in CLASSES]
MODES += [pytest.param(ms.GRAPH_MODE, name, id=f"graph-{name}") for name in ("Momentum", "Adam", "AdaFactor", "FTRL")]


@pytest.mark.parametrize(("mode", "name"), MODES, indirect=["mode"])
def test_narrowed(mode: int, name: str) -> None:
    """One state and one clock for both, and each parameter's own group."""
    case, params = CASES[name], parameters(dtypes=(ms.float32, ms.float32, ms.float32, ms.float16))
    rate = None if case.one_rate else 0.02
    optimizer = case.make(groups_of(params, rate), weight_decay=0.01)
    some = restrict(optimizer, [params[i] for i in SOME])
    expected = Oracle(case, params)
    lr = [rate or 0.1 if i in (0, 4) else 0.1 for i in range(len(SHAPES))]
    decay = [0.03 if i in (0, 4) else 0.01 for i in range(len(SHAPES))]
    centralized = [i in (0, 4) for i in range(len(SHAPES))]
    both = Both(optimizer, some)
    for step in range(5):
        grads = gradients(step, params)
        few = tuple(grads[i] for i in SOME)
        both(Tensor([step], ms.int32), grads, few)
        only = SOME if step % 2 else None
        expected(few if step % 2 else grads, lr, decay, centralized=centralized, only=only)
    expected.assert_weights([optimizer.masters[i] for i in range(len(params))])
    assert some.global_step is optimizer.global_step
    assert optimizer.global_step.asnumpy() == [5]
    left_out = tuple(p.name for i, p in enumerate(params) if i not in SOME)
    frozen = {id(p) for p in (*params, *optimizer.states) if p.name.endswith(left_out)}
    assert not frozen & {id(p) for p in some.get_parameters()}


def test_narrowed_with_dampening(mode: int) -> None:
    """The first step of a parameter is its own: one that was frozen till now starts with v = g."""
    case, params = CASES["SGD-dampening"], parameters()
    optimizer = case.make(params)
    some = restrict(optimizer, [params[3]])
    g = gradients(0, params)
    w = arrays(params)
    some((g[3],))
    optimizer(g)
    first = arrays(g)
    np.testing.assert_allclose(arrays(params)[0], w[0] - 0.1 * first[0], rtol=1e-6, atol=1e-6)
    v = 0.9 * first[3] + 0.7 * first[3]
    np.testing.assert_allclose(arrays(params)[3], w[3] - 0.1 * (first[3] + v), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["SGD-momentum", "Adam", "AdaFactor-moment", "RMSProp-centered"])
def test_freeze_opt(mode: int, name: str) -> None:
    """Each of its optimizers trains the parameters from some group on."""
    case, params = CASES[name], parameters()
    freeze = boost.FreezeOpt(case.make(params, weight_decay=0.01), train_parameter_groups=[params, params[3:]])
    expected = Oracle(case, params)
    for step in range(4):
        grads = gradients(step, params)
        late = step % 2
        freeze.opts[late](grads[3:] if late else grads)
        only = range(3, len(params)) if late else None
        expected(grads[3:] if late else grads, 0.1, decays(name), only=only)
    expected.assert_weights(params)
