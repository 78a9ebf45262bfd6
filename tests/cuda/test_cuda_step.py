"""Steps on CUDA: numbers that only the device knows, skipped steps, lists longer than a launch takes, listed rows, and
the CPU's bits. tests/ops has the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import device
from boost_ext import ops
from dtypes import FLOATS, assert_same_bits, normal
from on_cuda import needs_cuda
from ops.cases import leaves
from ops.narrow_state import Stored, split_master
from ops.steps import ELEMENTWISE, VARIANTS, Rule, gradient

pytestmark = needs_cuda

EACH_RULE = pytest.mark.parametrize("rule", VARIANTS.values(), ids=VARIANTS.keys())
# A power of CUDA differs from the CPU's in its last bits, and sums over a tensor have an order of their own.
SAME_BITS = {name: rule for name, rule in ELEMENTWISE.items() if name != "ftrl-power"}
KINDS = list(FLOATS.values())


def call(rule: Rule, where: str) -> Callable[..., None]:
    """The step, on the CPU or on CUDA."""
    function = inspect.unwrap(getattr(ops, f"{rule.name}_step"))
    step = device.on_device(function, *device.memory_of("cuda")) if where == "cuda" else function

    def run(weights: Any, grads: Any, state: Any, lr: Any = None, t: Any = 3, **options: Any) -> None:
        known = {"step": t} if rule.corrected else {}
        step(weights, grads, *state, lr=rule.lr if lr is None else lr, **known, **{**rule.hyper, **options})

    return run


def make(rng: np.random.Generator, rule: Rule, shapes: list[Any], mixed: bool = True) -> list[Any]:
    """Weights, gradients and states as after some steps."""
    kinds = [KINDS[i % 3 if mixed else 0] for i in range(len(shapes))]
    weights = [normal(rng, n, k) for n, k in zip(shapes, kinds, strict=True)]
    grads = [gradient(rng, n, k) for n, k in zip(shapes, reversed(kinds), strict=True)]
    return [weights, grads, [[np.asarray(x + abs(normal(rng, n)), np.float32) for n in shapes] for x in rule.start]]


def copies(arrays: Any) -> Any:
    return [copies(a) for a in arrays] if isinstance(arrays, list) else arrays.copy()


def same(one: Any, two: Any) -> None:
    for a, b in zip(leaves(one), leaves(two), strict=True):
        assert_same_bits(a, b)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


SHAPES: list[Any] = [(), (3,), (0,), (4097,), (5, 300), (70, 9)]
RATES, DECAYS, RATIOS = ([x / (1 + i) for i in range(len(SHAPES))] for x in (0.125, 0.25, 0.875))


@EACH_RULE
@pytest.mark.parametrize("each", [False, True], ids=["one", "each"])
def test_arrays_mean_what_numbers_mean(rng, rule, each):
    known = make(rng, rule, SHAPES)
    there = copies(known)
    numbers = (RATES, DECAYS, RATIOS) if each else (RATES[0], DECAYS[0], RATIOS[0])
    lr, decay, ratio = (np.atleast_1d(np.asarray(n, np.float32)) for n in numbers)
    more = {"inv_scale": 0.25, "weight_decay": numbers[1], "ratio": numbers[2], "centralize": True}
    call(rule, "cuda")(*known, lr=numbers[0], t=17, **more)
    more = {"inv_scale": floats(0.25), "weight_decay": decay, "ratio": ratio, "centralize": True, "skip": floats(0)}
    call(rule, "cuda")(*there, lr=lr, t=np.array([17], np.int32), **more)
    same(there, known)


@pytest.mark.parametrize("kind", ["bfloat16", "uint8"])
@pytest.mark.parametrize("name", ["momentum", "adam", "adam_weight_decay", "adamw", "lamb", "lion", "nadamw"])
def test_random_bits_of_a_step_on_the_device(rng, name, kind):
    rule, shapes = VARIANTS[name], [(5000,), (3, 100), (256,)]
    weights, grads, _ = make(rng, rule, shapes, mixed=False)
    results = []
    for t in (7, np.array([7], np.int32), 8):
        w, g = copies(weights), copies(grads)
        stored = [[Stored(kind, n, k) for n in shapes] for k in range(len(rule.start))]
        arrays, scales = ([[getattr(s, part) for s in tensors] for tensors in stored] for part in ("array", "scale"))
        step = device.on_device(inspect.unwrap(getattr(ops, f"{name}_step")), *device.memory_of("cuda"))
        step(w, g, *arrays, lr=0.1, step=t, seed=5, scales=scales, **rule.hyper)
        results.append([w, arrays])
    same(results[0], results[1])
    assert not np.array_equal(results[0][1][0][0], results[2][1][0][0])


@EACH_RULE
@pytest.mark.parametrize("flag", [1.0, -2.0, np.nan])
def test_a_skipped_step_writes_nothing(rng, rule, flag):
    tensors = make(rng, rule, SHAPES)
    before = copies(tensors)
    masters = [None if w.dtype == np.float32 else normal(rng, w.shape) for w in tensors[0]]
    masters_before = [None if m is None else m.copy() for m in masters]
    bad = {"inv_scale": floats(np.nan), "skip": floats(flag), "masters": masters, "centralize": True}
    call(rule, "cuda")(*tensors, **bad)
    call(rule, "cpu")(*tensors, **bad)
    same(tensors, before)
    same([m for m in masters if m is not None], [m for m in masters_before if m is not None])
    call(rule, "cuda")(*tensors, skip=floats(0), masters=masters, centralize=True)
    assert not np.array_equal(tensors[0][3], before[0][3])


@pytest.mark.parametrize("name", SAME_BITS)
def test_the_cpus_bits(rng, name):
    rule = SAME_BITS[name]
    here = make(rng, rule, [(), (3,), (0,), (4097,), (5, 300), (9000,)])
    there = copies(here)
    masters = [None if w.dtype == np.float32 else w.astype(np.float32) for w in here[0]]
    masters_there = [None if m is None else m.copy() for m in masters]
    for t in (1, 2):
        call(rule, "cpu")(*here, t=t, inv_scale=0.3, weight_decay=0.01, ratio=0.7, masters=masters)
        call(rule, "cuda")(*there, t=t, inv_scale=0.3, weight_decay=0.01, ratio=0.7, masters=masters_there)
    same(there, here)
    same([m for m in masters_there if m is not None], [m for m in masters if m is not None])


NARROW = ["momentum", "momentum-nesterov", "adam", "adam-nesterov", "adam_weight_decay", "adamw", "lion", "nadamw"]
EACH_NARROW = pytest.mark.parametrize("name", NARROW)
EACH_STATE = pytest.mark.parametrize("state", ["bfloat16", "uint8"])
LONG: list[tuple[int, ...]] = [(3, 100), (4096,), (20001,), (40960,)]


def three_steps(name: str, state: str, weights: Any, grads: Any, masters: Any = None) -> None:
    """Chunks of 4096 elements have a loop of their own; some blocks are 0, tiny, huge, inf or nan."""
    for i, value in enumerate([0, 2.0**-75, 2.0**63, np.inf, np.nan]):
        grads[2][512 * i : 512 * i + 256] *= 0 if value == 0 else 1
        grads[2][512 * i + 7] = value
    rule, results = VARIANTS[name], []
    step = inspect.unwrap(getattr(ops, f"{rule.name}_step"))
    for run in (step, device.on_device(step, *device.memory_of("cuda"))):
        w, m = copies(weights), None if masters is None else copies(masters)
        stored = [[Stored(state, x.shape, k) for x in weights] for k in range(len(rule.start))]
        arrays, scales = ([[getattr(s, part) for s in tensors] for tensors in stored] for part in ("array", "scale"))
        more = {"seed": 5, "inv_scale": 0.3, "weight_decay": 0.01, "scales": scales, "masters": m}
        for t in (1, 2, 3):
            run(w, copies(grads), *arrays, lr=0.1, step=t, **{**rule.hyper, **more})
        floats = [*w, *(x for x in leaves(arrays) if x.dtype.kind != "u")]
        for x in floats:
            x[np.isnan(x)] = np.nan  # which nan it is, is the device's
        results.append([w, arrays, [[x for x in of if x is not None] for of in scales], m or []])
    same(*results)


@EACH_STATE
@EACH_NARROW
def test_the_cpus_bits_of_narrow_state(rng, name, state):
    kinds = [FLOATS[t] for t in ("float32", "bfloat16", "float32", "float16")]
    grads = [gradient(rng, s, t) for s, t in zip(LONG, kinds, strict=True)]
    three_steps(name, state, [normal(rng, s) for s in LONG], grads)


@pytest.mark.parametrize("gradients", ["bfloat16", "float32"])
@pytest.mark.parametrize("residual", [np.int16, np.int8], ids=["split16", "split8"])
@EACH_STATE
@EACH_NARROW
def test_the_cpus_bits_of_split_masters(rng, name, state, residual, gradients):
    parts = [split_master(normal(rng, s), 8 * np.dtype(residual).itemsize) for s in LONG]
    weights = [w.view(FLOATS["bfloat16"]) for w, _ in parts]
    grads = [gradient(rng, s, FLOATS[gradients]) for s in LONG]
    three_steps(name, state, weights, grads, [r for _, r in parts])


@pytest.mark.parametrize("name", ["adam", "adam-amsgrad", "lamb"])
def test_more_tensors_than_a_launch_takes(rng, name):
    """Tables are full after some 500 of them."""
    rule = VARIANTS[name]
    here = make(rng, rule, [1 + i % 7 for i in range(1300)])
    there = copies(here)
    call(rule, "cpu")(*here, weight_decay=0.01)
    call(rule, "cuda")(*there, weight_decay=0.01)
    if rule.elementwise:
        return same(there, here)
    for a, b in zip(leaves(there), leaves(here), strict=True):  # ratios of norms may be rounded differently
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-2, atol=1e-6)


def test_more_settings_than_a_launch_takes(rng):
    rule, count = VARIANTS["momentum"], 200
    here = make(rng, rule, [5] * count)
    there = copies(here)
    rates = [0.1 / (1 + i % 150) for i in range(count)]
    call(rule, "cpu")(*here, lr=rates)
    call(rule, "cuda")(*there, lr=rates)
    same(there, here)


@pytest.mark.parametrize("width", [1, 9, 2048, 2049, 5000])
def test_many_centralized_tensors(rng, width):
    """Each has its own settings in a launch. Rows of warps, of blocks, and over the ends of blocks."""
    rule, count = VARIANTS["sgd"], 70 if width < 10 else 3
    weights, grads, state = make(rng, rule, [(5, width)] * count, mixed=False)
    before = copies(weights)
    call(rule, "cuda")(weights, grads, state, lr=1.0, centralize=[i != 1 for i in range(count)])
    for i in range(count):
        g = grads[i].astype(np.float64)
        expected = before[i] - (g - (g.mean(axis=1, keepdims=True) if i != 1 else 0))
        np.testing.assert_allclose(weights[i], expected, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("name", SAME_BITS)
@pytest.mark.parametrize("width", [1, 40, 1025])
def test_rows_that_are_listed_many_times(rng, name, width):
    rule = SAME_BITS[name]
    weight, state = normal(rng, (30, width)), [x + abs(normal(rng, (30, width))) for x in rule.start]
    there = copies([weight, state])
    index = rng.permutation(np.repeat(rng.integers(0, 30, 10), 20)).astype(np.int32)
    values = gradient(rng, (200, width), FLOATS["bfloat16"])
    call(rule, "cpu")(weight, values, state, indices=index, weight_decay=0.1)
    call(rule, "cuda")(there[0], values, there[1], indices=index, weight_decay=0.1)
    same(there, [weight, state])


def test_rows_out_of_range_are_ignored(rng):
    rule = VARIANTS["momentum"]
    weight, state, values = normal(rng, (7, 20)), [normal(rng, (7, 20))], gradient(rng, (6, 20))
    there = copies([weight, state])
    index = np.array([3, -1, 7, 3, 2**31 - 1, 0], np.int32)
    good = (index >= 0) & (index < 7)
    call(rule, "cpu")(weight, values[good], state, indices=index[good])
    call(rule, "cuda")(there[0], values, there[1], indices=index)
    same(there, [weight, state])


def test_rows_of_a_skipped_step(rng):
    rule = VARIANTS["adam"]
    weight, state = normal(rng, (7, 20)), [abs(normal(rng, (7, 20))) for _ in rule.start]
    before = copies([weight, state])
    index, values = np.array([3, 3, 0], np.int32), gradient(rng, (3, 20))
    for where in ("cpu", "cuda"):
        call(rule, where)(weight, values, state, indices=index, centralize=True, skip=floats(1))
    same([weight, state], before)


def test_lars_and_its_step_stay_on_the_device(rng):
    """Ratios as they come, without a copy to the host, for the gradients and for the decays."""
    tensors = [[normal(rng, n) for n in (4, 5000, 300)] for _ in range(3)]
    expected = copies(tensors)
    lars = inspect.unwrap(ops.lars_ratios)
    ratio, decay_ratio = lars(expected[0], expected[1], inv_scale=0.5, weight_decay=0.1)
    momentum = inspect.unwrap(ops.momentum_step)
    momentum(*expected, lr=0.1, inv_scale=0.5, ratio=ratio, weight_decay=decay_ratio)

    memory, kind = device.memory_of("cuda")
    scale = floats(0.5)
    image = device.Image([*leaves(tensors), scale])
    on = memory(image.bytes)
    exchange = device.Exchange(image, on.address, (kind, 0))
    weights, grads, moments = (exchange.there(t) for t in tensors)
    there = lars(weights, grads, inv_scale=exchange.there(scale), weight_decay=0.1)
    momentum(weights, grads, moments, lr=0.1, inv_scale=exchange.there(scale), ratio=there[0], weight_decay=there[1])
    np.testing.assert_allclose(there[0].numpy(), ratio, rtol=2e-7)
    np.testing.assert_allclose(there[1].numpy(), decay_ratio, rtol=2e-7)
    image.bring_back(on.read(), "momentum_step")
    on.free()
    for a, b in zip(leaves(tensors), leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_lars_of_more_tensors_than_a_launch_takes(rng):
    tensors = [[normal(rng, 2) for _ in range(3100)] for _ in range(2)]
    apply = [i % 5 != 0 for i in range(3100)]
    lars = inspect.unwrap(ops.lars_ratios)
    settings = {"lr": 0.01, "weight_decay": 0.1, "use_clip": True, "apply": apply}
    expected = lars(*tensors, **settings)
    got = device.on_device(lars, *device.memory_of("cuda"))(*tensors, **settings)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a.numpy() if hasattr(a, "numpy") else a, b, rtol=2e-7)
