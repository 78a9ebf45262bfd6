"""Loss scaling in a loop of one's own: the functions and classes of mindspore.amp, beside them."""

import gc
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore import amp as theirs
from tests.ms.networks import Mlp, mlp_batch

from boost_ext import amp, optim

INF, NAN = np.inf, np.nan
LISTS = [
    (np.ones((2, 3), np.float32), np.float16([60000, -1])),
    (np.ones((2, 3), np.float32), np.float16([60000, INF])),
    (np.float32([NAN]), np.ones(5, np.float32)),
    (np.float64([1e300, 2]), np.int32([3])),
    (np.float64([1e300, -INF]), np.float32([1])),
    (np.float32([1]), np.float64([NAN])),
]


@ms.jit
def _in_a_graph(tensors: Any) -> Tensor:
    return amp.all_finite(tensors)


@ms.jit
def _log(x: Tensor) -> Tensor:
    return ops.log(x)


@pytest.mark.parametrize("arrays", LISTS)
def test_all_finite(mode: int, arrays: tuple[np.ndarray, ...]) -> None:
    tensors = tuple(map(Tensor, arrays))
    expected = all(np.isfinite(a).all() for a in arrays)
    for found in (amp.all_finite(tensors), amp.all_finite(list(tensors)), _in_a_graph(tensors)):
        assert (bool(found), found.dtype, found.shape) == (expected, ms.bool_, ())
    assert bool(theirs.all_finite(tensors)) == expected
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.asnumpy(), array)
    assert bool(amp.all_finite(tensors[0])) == bool(np.isfinite(arrays[0]).all())


def test_all_finite_of_views_bfloat16_and_results_of_a_graph(mode: int) -> None:
    view = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).swapaxes(0, 1)
    half = Tensor([3e38], ms.float32).astype(ms.bfloat16)  # finite, or not: 3e38 is in bfloat16's range
    assert amp.all_finite((view, half))
    assert not amp.all_finite((view, half, _log(Tensor([0.0]))))


def scalers(*arguments: Any) -> tuple[Any, Any]:
    return amp.DynamicLossScaler(*arguments), theirs.DynamicLossScaler(*arguments)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("arguments", [(4.0, 2, 3), (1.5, 3, 1), (2.0**127, 4, 2)])
def test_the_dynamic_scaler_moves_as_mindspore_s(mode: int, in_graph: bool, arguments: Any) -> None:
    ours, reference = scalers(*arguments)

    @ms.jit
    def compiled(finite: Tensor) -> bool:
        return ours.adjust(finite)

    adjust = compiled if in_graph else ours.adjust
    rng = np.random.default_rng(0)
    for finite in [*(rng.random(12) < 0.7), True, True, True, *[False] * 5, True]:
        flag = Tensor(bool(finite))
        assert adjust(flag)
        reference.adjust(flag)
        assert ours.scale_value.asnumpy() == reference.scale_value.asnumpy()
        assert ours.counter.asnumpy() == reference.counter.asnumpy()
    assert [p.name for p in (ours.scale_value, ours.counter)] == ["scale_value", "counter"]


def test_scale_and_unscale(mode: int) -> None:
    values = (Tensor([1.5, -2.0], ms.float16), Tensor([[3.0]], ms.float32))
    for ours, reference in (
        scalers(1000.0, 2, 10),
        (amp.StaticLossScaler(1000.0), theirs.StaticLossScaler(1000.0)),
    ):
        assert isinstance(ours, amp.LossScaler)
        assert isinstance(ours, theirs.LossScaler)
        for method in ("scale", "unscale"):
            for got, expected in zip(getattr(ours, method)(values), getattr(reference, method)(values), strict=True):
                assert got.dtype == expected.dtype
                np.testing.assert_array_equal(got.asnumpy(), expected.asnumpy())
        np.testing.assert_array_equal(ours.scale(Tensor([2.0])).asnumpy(), [2000.0])
    assert amp.StaticLossScaler(8.0).adjust(Tensor(False)) is False


def test_a_scaler_after_another(mode: int) -> None:
    """MindSpore finds compiled functions by the address of the scale, which may be that of a scaler that is gone."""
    addresses = []
    for scale in 2.0 ** np.arange(3, 13):
        for scaler in (amp.StaticLossScaler(float(scale)), amp.DynamicLossScaler(float(scale), 2, 3)):
            addresses.append(id(scaler.scale_value))
            for finite in (True, False, True):
                tensors = (Tensor([3.0]), Tensor([[5.0]]))  # of one alone MindSpore's is right
                unscaled, scaled = scaler.unscale(tensors), scaler.scale(tensors)
                held = scaler.scale_value.asnumpy()  # not before: a read takes the value to the host
                assert (unscaled[1].asnumpy(), scaled[1].asnumpy()) == (5 / held, 5 * held)
                scaler.adjust(Tensor(finite))
            assert held == (scale if isinstance(scaler, amp.StaticLossScaler) else scale / 2)
        del scaler
        gc.collect()
    assert len(set(addresses)) < len(addresses)


_KEPT: list[Any] = []  # of MindSpore's own, so that none gets the address of another (the test before)


@pytest.mark.parametrize("whole", ["eager", "jit"])
def test_a_loop_of_one_s_own(mode: int, whole: str) -> None:
    """An overflow is skipped and halves the scale; what is compiled and what is not train alike."""
    losses = []
    for module in (amp, theirs):
        net = Mlp()
        optimizer = (optim if module is amp else nn).Momentum(net.trainable_params(), 0.1, 0.9)
        scaler = module.DynamicLossScaler(2.0**10, 2, 3)
        if module is theirs:
            _KEPT.append(scaler)
        losses.append(_train(net, optimizer, module, scaler, whole))
    np.testing.assert_allclose(*losses, rtol=1e-5)


def _train(net: nn.Cell, optimizer: nn.Optimizer, module: Any, scaler: Any, whole: str) -> list[float]:
    entropy = nn.CrossEntropyLoss()
    all_finite = module.all_finite

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return scaler.scale(entropy(net(x), y))

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss, grads = gradients(x, y)
        loss, grads = scaler.unscale(loss), scaler.unscale(grads)
        finite = all_finite(grads)
        if finite:
            loss = ops.depend(loss, optimizer(grads))
        return loss, ops.depend(finite, scaler.adjust(finite))

    run = ms.jit(step) if whole == "jit" else step
    losses = []
    for i in range(5):
        x, y = mlp_batch(i, 8)
        if i == 1:
            x = Tensor(np.full(x.shape, np.inf, np.float32))
        loss, finite = run(x, y)
        assert bool(finite) == (i != 1)
        losses.append(float(loss) if i != 1 else 0.0)
    assert float(scaler.scale_value.asnumpy()) == 2.0**10  # halved once, doubled after three
    return losses


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "scale_value must be finite, >= 1 and <= 3.40282e.38, got nan", (NAN, 2, 3)),
        (ValueError, "scale_value must be finite, >= 1 and <= 3.40282e.38, got 0.5", (0.5, 2, 3)),
        (TypeError, "scale_value must be a number, got str", ("8", 2, 3)),
        (TypeError, "scale_factor must be an int, got float", (8.0, 2.0, 3)),
        (ValueError, "scale_factor must be from 1 to 16777216, got 0", (8.0, 0, 3)),
        (TypeError, "scale_window must be an int, got bool", (8.0, 2, True)),
        (ValueError, "scale_window must be from 1 to 2147483647, got 0", (8.0, 2, 0)),
    ],
)
def test_refused(error: type[Exception], message: str, arguments: Any) -> None:
    with pytest.raises(error, match=f"^DynamicLossScaler: {message}$"):
        amp.DynamicLossScaler(*arguments)


def test_parameters_are_those_of_a_checkpoint() -> None:
    scaler = amp.DynamicLossScaler(8.0, 2, 3)
    assert isinstance(scaler.scale_value, Parameter)
    assert (scaler.scale_value.shape, scaler.counter.shape, scaler.counter.dtype) == ((), (), ms.int32)


@pytest.mark.parametrize(
    ("error", "value"), [(ValueError, NAN), (ValueError, 0.5), (TypeError, "8"), (TypeError, True)]
)
def test_the_static_scaler_refuses(error: type[Exception], value: Any) -> None:
    with pytest.raises(error, match=r"^StaticLossScaler: scale_value must be "):
        amp.StaticLossScaler(value)
