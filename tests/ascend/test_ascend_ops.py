"""boost_ext.ops on MindSpore's Ascend tensors, by the kernels on our emulator: its device memory is NumPy's.

The tensors are of a class that has what MindSpore's have, from a package whose name begins like MindSpore's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import boost_ext
from boost_ext import ops

BUILT = boost_ext.build_info()["ascend"]
emulated = pytest.mark.skipif(BUILT != {"emulated": True}, reason="needs a build with BOOST_EXT_ASCEND_EMULATOR=ON")

PACKAGE = "mindspore_emulated"
STREAM = 0xBEEF0


class DType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


DTYPES = {
    np.dtype(kind): DType(name)
    for kind, name in (
        (np.float32, "Float32"),
        (np.float16, "Float16"),
        (ml_dtypes.bfloat16, "BFloat16"),
        (np.float64, "Float64"),
        (np.int32, "Int32"),
    )
}
FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]


class Tensor:
    __module__ = f"{PACKAGE}.common.tensor"

    def __init__(self, array: np.ndarray, device: str = "Ascend:0", address: int | None = None) -> None:
        self.array, self.device, self.address = array, device, address

    @property
    def dtype(self) -> DType:
        return DTYPES[self.array.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def data_ptr(self) -> int:
        return self.array.ctypes.data if self.address is None else self.address


class Parameter(Tensor):
    """A user's own class: which package it is from, its base says."""

    __module__ = "somebody.elses"


class Runtime:
    """What this package's runtime.current_stream gives, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.stream: Any = SimpleNamespace(stream_ptr=lambda: STREAM)

    def current_stream(self) -> Any:
        self.asked += 1
        return self.stream


RUNTIME = Runtime()


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    package, module = ModuleType(PACKAGE), ModuleType(f"{PACKAGE}.runtime")
    module.current_stream = RUNTIME.current_stream
    monkeypatch.setitem(sys.modules, PACKAGE, package)
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.runtime", module)
    monkeypatch.setattr(RUNTIME, "asked", 0)
    return RUNTIME


def npu(arrays: list[np.ndarray]) -> list[Tensor]:
    return [Tensor(a) for a in arrays]


def random_tensors(rng: np.random.Generator, dtype: Any) -> list[np.ndarray]:
    """Multiples of 1/8: their sums are exact."""
    return [np.asarray(rng.integers(-16, 17, size=shape) / 8, dtype) for shape in ((3, 5), (), (0, 2), (700,))]


def copies(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [a.copy() for a in arrays]


def flag() -> Tensor:
    return Tensor(np.full(1, 7, np.float32))


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64))


@emulated
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [None, np.inf, np.nan])
def test_unscale_and_check(rng, runtime, dtype, bad):
    ours = random_tensors(rng, dtype)
    if bad is not None:
        ours[3][99] = bad
    theirs = copies(ours)
    out = flag()
    assert ops.unscale_and_check(npu(ours), 0.25, out=out) is out
    assert ops.unscale_and_check(theirs, 0.25) == (out.array[0] == 1.0)
    assert out.array[0] == (bad is not None)
    assert_same(ours, theirs)
    assert runtime.asked == 1, "the stream is asked for once a call"


@emulated
@pytest.mark.parametrize("dtype", FLOATS)
def test_adasum_pair(rng, dtype):
    a, b = random_tensors(rng, dtype), random_tensors(rng, dtype)
    expected = ops.adasum_pair(a, b)
    out = copies(a)
    ops.adasum_pair(npu(a), npu(b), npu(out))
    for ours, theirs in zip(out, expected, strict=True):
        close = {"rtol": 2e-2, "atol": 1e-2} if dtype is not np.float32 else {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), **close)


@emulated
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_projections(rng, dtype, count):
    grads = random_tensors(rng, dtype)
    P = (rng.integers(-16, 17, size=(4, sum(g.size for g in grads))) / 8).astype(dtype)
    sums = Tensor(np.empty(4, np.float32))
    assert ops.pca_project(Tensor(P), npu(grads), sums) is sums
    np.testing.assert_array_equal(sums.array, ops.pca_project(P, grads))
    vectors = [rng.standard_normal(4).astype(np.float32) for _ in range(count)]
    ours, theirs = ([copies(grads) for _ in vectors] for _ in range(2))
    ops.pca_back_project(Tensor(P), npu(vectors), [npu(o) for o in ours])
    ops.pca_back_project(P, vectors, theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b)


@emulated
def test_bfgs_update(rng):
    B = np.eye(12, dtype=np.float32)
    s = rng.standard_normal(12).astype(np.float32)
    y = (s + 0.1).astype(np.float32)
    expected, out = B.copy(), flag()
    assert ops.bfgs_update(expected, s, y)
    assert ops.bfgs_update(Tensor(B), Tensor(s), Tensor(y), out=out) is out
    assert out.array[0] == 1
    np.testing.assert_allclose(B, expected, rtol=1e-4, atol=1e-4)
    before = B.copy()
    ops.bfgs_update(Tensor(B), Tensor(s), Tensor(-s), out=out)
    assert out.array[0] == 0
    np.testing.assert_array_equal(B, before)


STEPS: dict[str, Callable[..., None]] = {
    "momentum": lambda w, g, m, v, **k: ops.momentum_step(w, g, m, lr=0.1, momentum=0.9, use_nesterov=True, **k),
    "adam": lambda w, g, m, v, **k: ops.adam_step(w, g, m, v, lr=[0.1, 0.2, 0.3, 0.4], step=2, **k),
    "adam_weight_decay": lambda w, g, m, v, **k: ops.adam_weight_decay_step(w, g, m, v, lr=0.1, **k),
}


@emulated
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", STEPS)
def test_steps(rng, dtype, rule):
    weights, grads = random_tensors(rng, dtype), random_tensors(rng, dtype)
    moments, squares = random_tensors(rng, np.float32), [np.abs(a, out=a) for a in random_tensors(rng, np.float32)]
    masters = [w.astype(np.float32) for w in weights]
    settings = {"weight_decay": 0.01, "inv_scale": 0.5, "ratio": [1.0, 2.0, 1.0, 0.25]}
    lists = [weights, grads, moments, squares]
    theirs = [copies(a) for a in lists]
    their_masters = copies(masters)
    half = dtype is not np.float32
    STEPS[rule](*[[Parameter(a) for a in some] for some in lists], masters=npu(masters) if half else None, **settings)
    STEPS[rule](*theirs, masters=their_masters if half else None, **settings)
    for a, b in zip([*lists, masters], [*theirs, their_masters], strict=True):
        assert_same(a, b)


def refused(expected: str, error: type[Exception], call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert str(caught.value) == expected


@emulated
def test_results_are_the_callers(rng):
    a, B = Tensor(np.ones(4, np.float32)), Tensor(np.ones((1, 1), np.float32))
    one = Tensor(np.ones(1, np.float32))
    for op, call in {
        "unscale_and_check": lambda: ops.unscale_and_check([a], 0.5),
        "pca_project": lambda: ops.pca_project(Tensor(np.ones((2, 4), np.float32)), [a]),
        "bfgs_update": lambda: ops.bfgs_update(B, one, one),
    }.items():
        refused(f"{op}: out must be given for Ascend tensors, got none", ValueError, call)
    with pytest.raises(ValueError, match=r"^adasum_pair: out must be given"):
        ops.adasum_pair([a], [a])
    text = "unscale_and_check: report must be False for Ascend tensors, got True"
    refused(text, ValueError, ops.unscale_and_check, [a], 0.5, report=True, out=one)
    np.testing.assert_array_equal(a.array, 1)


@emulated
def test_what_has_no_kernel():
    a, b = Tensor(np.ones((2, 4), np.float32)), Tensor(np.ones((2, 4), np.float32))
    norm, dots = Tensor(np.ones(1)), Tensor(np.ones((1, 3)))
    states = [[Tensor(np.zeros((2, 4), np.float32))] for _ in range(2)]
    none = "got Ascend arrays, but this op has no Ascend kernel"
    refused(f"global_norm: {none}", RuntimeError, ops.global_norm, [a], out=norm)
    refused(f"accumulate: {none}", RuntimeError, ops.accumulate, [a], [b], 1.0)
    refused(f"centralize: {none}", RuntimeError, ops.centralize, [a], [b])
    refused(f"rmsprop_step: {none}", RuntimeError, ops.rmsprop_step, [a], [b], *states, lr=0.1)
    with pytest.raises(RuntimeError, match=r"^adasum_dots: got Ascend arrays, but dots are float64, which no"):
        ops.adasum_dots([a], [b], dots)
    text = "momentum_step: centralize must be False on Ascend, whose kernels form no means, got True for params[0]"
    state = Tensor(np.zeros((2, 4), np.float32))
    refused(text, ValueError, ops.momentum_step, [a], [b], [state], lr=0.1, momentum=0.9, centralize=True)


@emulated
def test_where_tensors_are(runtime):
    a, out = np.ones(4, np.float32), flag()
    text = "unscale_and_check: all arguments must live on one device, got Ascend and CPU"
    for other in (a, Tensor(a, "CPU")):
        refused(text, ValueError, ops.unscale_and_check, [Tensor(a), other], 0.5, out=out)
    text = "unscale_and_check: Ascend device 5 cannot be used by this process"
    five = "Ascend:5"
    refused(text, RuntimeError, ops.unscale_and_check, [Tensor(a, five)], 0.5, out=Tensor(out.array, five))
    with pytest.raises(ValueError, match=r"^unscale_and_check: grads\[0\] must have its memory allocated"):
        ops.unscale_and_check([Tensor(a, address=0)], 0.5, out=out)
    runtime.stream = None
    try:
        text = "unscale_and_check: MindSpore has no current stream for Ascend tensors"
        refused(text, RuntimeError, ops.unscale_and_check, [Tensor(a)], 0.5, out=out)
        runtime.stream = SimpleNamespace(stream_ptr=STREAM)  # a property
        ops.unscale_and_check([Tensor(a)], 0.5, out=out)
    finally:
        runtime.stream = SimpleNamespace(stream_ptr=lambda: STREAM)
    np.testing.assert_array_equal(a, 0.5)


@pytest.mark.skipif(BUILT is not None, reason="this build has Ascend kernels")
def test_without_kernels(runtime):
    a = Tensor(np.ones(4, np.float32), address=0)
    text = "global_norm: got Ascend arrays, but this build has no Ascend kernels (see boost_ext.build_info())"
    refused(text, RuntimeError, ops.global_norm, [a])
    # Its address is none of the host's; and what MindSpore has on the host may stand before it.
    mixed = [Tensor(np.ones(4, np.float32), "CPU"), Tensor(np.ones(4, np.float32), address=4096)]
    text = "global_norm: all arguments must live on one device, got CPU and Ascend"
    refused(text, ValueError, ops.global_norm, mixed)
    assert "ascend" not in boost_ext.build_info()["backends"]
    assert runtime.asked == 0
