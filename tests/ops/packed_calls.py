"""The packed calls of MindSpore's cells, some of them damaged. A program: the name of a call, how many times,
and a seed. Default: 0."""

import faulthandler
import re
import sys

import numpy as np

from boost_ext import _core

faulthandler.enable()
NUMBERS = [-(2**31), -257, -4, -1, 0, 1, 2, 3, 10, 11, 12, 250, 2**16, 2**31 - 1]


def f32(*values):
    return np.array(values, np.float32)


def f64(*values):
    return np.array(values, np.float64)


def i32(*values):
    return np.array(values, np.int32)


def tensors(count):
    return [np.ones((3, 4), np.float32) for _ in range(count)]


def step(name, states, hyper, powers=False, first=False):
    rule = _core.optimizer_rules().index(name)
    head = [i32(rule, 1, states, powers, first, 2, 0, *[0, 0, 0, 0] * 2), f64(*hyper, 1), np.zeros(1, bool), f32(1)]
    numbers = [i32(1), f32(1), f32(0.1), f32(0), *([f32(0.9)] * (2 if name == "adam" else 1) if powers else [])]
    return [*head, *numbers, *tensors(2), *tensors(2), *tensors(2 * states), *([f32(1), f32(1)] if first else [])]


def adafactor():
    rule = _core.optimizer_rules().index("adafactor")
    head = [i32(rule, 1, 1, 0, 0, 2, 0, *[0, 0, 0, 0] * 2), f64(1e-30, 1e-3, 1, 0.8, 0.9, 0, 0, 0, 1)]
    numbers = [np.zeros(1, bool), f32(1), i32(1), f32(1), f32(0.1), f32(0), f32(1)]
    return [*head, *numbers, *tensors(4), *[np.ones(n, np.float32) for n in (3, 4, 3, 4)], *tensors(2)]


def muon():
    rule = _core.optimizer_rules().index("muon")
    head = [i32(rule, 1, 1, 0, 0, 2, 0, *[0, 0, 0, 1], *[0, 0, 0, 0]), f64(0.9, 1, 5, 1e-7, 0, 0.9, 0.99, 1e-8, 1)]
    return [*head, np.zeros(1, bool), f32(1), i32(1), f32(1), f32(0.1), f32(0), *tensors(2 * 3 + 1)]


def apollo():
    rule = _core.optimizer_rules().index("apollo")
    head = [i32(rule, 1, 2, 0, 0, 2, 0, *[0, 0, 0, 1], *[0, 0, 0, 0]), f64(0, 1, 1.01, 200, 0.9, 0.99, 1e-8, 1)]
    return [*head, np.zeros(1, bool), f32(1), i32(1), f32(1), f32(0.1), f32(0), *tensors(2 * 4), f32(1)]


def galore():
    rule = _core.optimizer_rules().index("galore")
    head = [i32(rule, 1, 2, 0, 0, 2, 0, *[0, 0, 0, 1], *[0, 0, 0, 0]), f64(0.25, 200, 0.9, 0.99, 1e-8, 1)]
    return [*head, np.zeros(1, bool), f32(1), i32(0), f32(1), f32(0.1), f32(0), *tensors(2 * 4), f32(*[1] * 9)]


def lars():
    head = [i32(0, 1, 1, 0, 0, 2, 0, *[0, 0, 0, 0] * 2), f64(0.9, 0, 1), f64(1e-3, 1e-5, 0)]
    return [*head, i32(1, 1), f32(1), f32(0.1), f32(0), f32(1, 1, 1, 1), *tensors(4)]


def covariance(kind, x, dout, A):
    layer = i32(kind, 1, 2, 3, 3, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0)
    return [i32(0), layer, f64(4), x, np.ones(dout, np.float32), np.ones(A), np.ones((1, 2, 2))]


def dense():
    return covariance(0, np.ones((4, 3), np.float32), (4, 2), (1, 3, 3))


def convolution():
    return covariance(1, np.ones((2 * 3 * 5, 5), np.float32), (2, 2, 3, 3), (1, 27, 27))


def embedding():
    return covariance(2, i32(1, 0, 1, 2), (4, 2), 3)


def inverse():
    factors = [np.ones((1, 3, 3)), np.ones((1, 2, 2))]
    head = [i32(0), np.zeros(1, bool), i32(1), f64(1), f32(1), f32(0.1, 0.2)]
    return [*head, *factors, *(f.astype(np.float32) for f in factors)]


def precondition():
    return [f32(1), np.ones((1, 4, 4), np.float32), np.ones((1, 3, 3), np.float32), i32(1, 0), *tensors(4)]


CALLS = {
    "sgd": (lambda: step("sgd", 1, [0.9, 0, 0], True, True), "optimizer_step"),
    "momentum": (lambda: step("momentum", 1, [0.9, 0, 0], True), "optimizer_step"),
    "adam": (lambda: step("adam", 2, [0.9, 0.99, 1e-8, 0, 0], True), "optimizer_step"),
    "adagrad": (lambda: step("adagrad", 1, [1]), "optimizer_step"),
    "adafactor": (adafactor, "optimizer_step"),
    "muon": (muon, "optimizer_step"),
    "apollo": (apollo, "optimizer_step"),
    "galore": (galore, "optimizer_step"),
    "lars": (lars, "lars"),
    "dense": (dense, "covariance"),
    "convolution": (convolution, "covariance"),
    "embedding": (embedding, "covariance"),
    "inverse": (inverse, "damped_inverse"),
    "precondition": (precondition, "precondition"),
}


def damage(arrays, rng):
    i = int(rng.integers(len(arrays)))
    change = int(rng.integers(10))
    if change == 0:
        del arrays[i]
    elif change == 1:
        arrays.insert(i, arrays[int(rng.integers(len(arrays)))])
    elif change == 2:
        arrays[i] = arrays[i][:0]
    elif change == 3:
        arrays[i] = np.concatenate([arrays[i]] * 2)
    elif change == 4:
        arrays[i].flags.writeable = False
    elif change == 5:
        arrays[i] = np.empty((2**40, 0), arrays[i].dtype)
    else:
        whole = [k for k, a in enumerate(arrays) if a.dtype == np.int32 and a.size and a.flags.writeable]
        if whole:
            array = arrays[whole[int(rng.integers(len(whole)))]].reshape(-1)
            array[int(rng.integers(array.size))] = NUMBERS[int(rng.integers(len(NUMBERS)))]


if sys.argv[1] == "--names":
    sys.exit(print(*CALLS))
make, op = CALLS[sys.argv[1]]
_core.call(op, make())
rng = np.random.default_rng(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
refused = 0
for number in range(int(sys.argv[2])):
    arrays = make()
    for _ in range(1 + number % 3):
        if arrays:
            damage(arrays, rng)
    frozen = [(a, a.tobytes()) for a in arrays if not a.flags.writeable]
    try:
        _core.call(op, arrays)
    except (TypeError, ValueError) as refusal:
        refused += 1
        message = str(refusal)
        if not re.fullmatch(r"[a-z_]+: [ -~]+, (got|but) [ -~]+", message):  # an op, and no memory
            raise AssertionError(message) from refusal
    assert all(a.tobytes() == was for a, was in frozen)
print(refused)
