"""One valid call of every op, and what each of its array arguments must be: for the tests that all ops share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from boost_ext import _core, ops
from boost_ext.ops.arguments import Array, Arrays
from boost_ext.ops.projection_codes import PROJECTION_BLOCK

ANY_FLOAT = "float32, float16 or bfloat16"
MATRIX = "float32, float16, bfloat16 or int8"
N = 24
K = 3


@dataclass(frozen=True)
class Argument:
    """An array or a list of arrays. `alone`: it cannot be a list; `any_rows`: of any number of rows."""

    dtype: str = ANY_FLOAT
    written: bool = False
    alone: bool = False
    any_rows: bool = False


@dataclass(frozen=True)
class Case:
    op: str
    make: Callable[[np.random.Generator], dict[str, Any]]
    arrays: dict[str, Argument]
    settings: dict[str, Any] = field(default_factory=dict)
    may_share: frozenset[frozenset[str]] = frozenset()
    native: Callable[..., Any] | None = None  # what is called if boost_ext.ops has no function of these arguments

    @property
    def function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = self.native or getattr(ops, self.op)
        return function

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return self.function(**{**self.settings, **arguments})


def leaves(value: Any) -> Iterator[np.ndarray]:
    """The arrays of arguments, which may be lists of lists of them."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, np.ndarray):
        yield value


def f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def codes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-127, 128, shape, np.int8)


def scales(rng: np.random.Generator) -> np.ndarray:
    """Of codes for 3 * N columns."""
    return f32(rng, K, -(-3 * N // PROJECTION_BLOCK))


def lists(rng: np.random.Generator, *names: str) -> dict[str, list[np.ndarray]]:
    return {n: [f32(rng, N), f32(rng, 2, N)] for n in names}


def pairs(*names: tuple[str, str]) -> frozenset[frozenset[str]]:
    return frozenset(frozenset(p) for p in names)


def fixed(dtype: str, written: bool = False) -> Argument:
    return Argument(dtype, written, alone=True)


def step(op: str, *state: str, **settings: Any) -> Case:
    """A step of an optimizer. Squares are summed in some of the states: these start at 1."""
    return Case(
        op,
        lambda r: {**lists(r, "params", "grads"), **{n: [abs(t) + 1 for t in lists(r, n)[n]] for n in state}},
        {"params": WRITTEN, "grads": READ, **{n: WRITTEN32 for n in state}},
        {"lr": 0.1, **settings},
    )


def of_schema(op: str) -> Case:
    """A case made from the description of the op: lists of tensors, and 0.5 for each setting that is a number."""
    taken = [a for a in _core.schemas()[op] if a["kind"] in ("array", "arrays")]
    return Case(
        op,
        lambda r: lists(r, *(a["name"] for a in taken)),
        {a["name"]: Argument(any_of(a["dtypes"]), a["written"], a["kind"] == "array") for a in taken},
        {a["name"]: 0.5 for a in _core.schemas()[op] if a["kind"] == "real"},
        pairs(*combinations([a["name"] for a in taken if a["twin"]], 2)),
    )


def lars(params: Arrays, grads: Arrays, ratio: Array, decay_ratio: Array) -> Any:
    """What ops.lars_ratios calls, which makes the results."""
    lr, decay, apply = [0.1, 0.2], [0.3, 0.0], [True, False]
    return _core.lars(params, grads, 1e-3, 1e-5, True, 0.5, lr, decay, apply, ratio, decay_ratio)


def any_of(dtypes: list[str]) -> str:
    """As messages name them."""
    return " or ".join([", ".join(dtypes[:-1]), dtypes[-1]] if len(dtypes) > 1 else dtypes)


CODES = fixed(MATRIX)  # of one byte: without alignment and byte order
READ, WRITTEN = Argument(), Argument(written=True)
READ32, WRITTEN32 = Argument("float32"), Argument("float32", written=True)
NUMBERS = Argument("float32", written=True)  # of one element each, which are never strided
RATES = {"gamma": 0.9, "alpha": 0.1, "rho": 0.5}

CASES = [
    Case(
        "pca_project",
        lambda r: {"P": f32(r, K, 3 * N), **lists(r, "grads"), "out": f32(r, K)},
        {"P": fixed(MATRIX), "grads": READ, "out": fixed("float32", True)},
    ),
    Case(
        "pca_project",
        lambda r: {"P": codes(r, K, 3 * N), "scale": scales(r), **lists(r, "grads"), "out": f32(r, K)},
        {"P": CODES, "scale": fixed("float32"), "grads": READ, "out": fixed("float32", True)},
    ),
    Case(
        "pca_back_project",
        lambda r: {
            "P": f32(r, K, 3 * N),
            "vectors": [f32(r, K), f32(r, K)],
            "out": list(lists(r, "first", "second").values()),
        },
        {"P": fixed(MATRIX), "vectors": READ32, "out": WRITTEN},
    ),
    Case(
        "pca_back_project",
        lambda r: {
            "P": codes(r, K, 3 * N),
            "scale": scales(r),
            "vectors": [f32(r, K), f32(r, K)],
            "out": list(lists(r, "first", "second").values()),
        },
        {"P": CODES, "scale": fixed("float32"), "vectors": READ32, "out": WRITTEN},
    ),
    Case(
        "bfgs_update",
        lambda r: {"B": np.eye(K, dtype=np.float32), "s": np.ones(K, np.float32), "y": np.ones(K, np.float32)},
        {"B": fixed("float32 or float64", True), "s": fixed("float32"), "y": fixed("float32")},
    ),
    Case(
        "adasum_dots",
        lambda r: {**lists(r, "a", "b"), "out": r.standard_normal((2, 3))},
        {"a": READ, "b": READ, "out": fixed("float64", True)},
    ),
    Case(
        "adasum_combine",
        lambda r: {**lists(r, "a", "b", "out"), "dots": r.standard_normal((2, 3))},
        {"a": READ, "b": READ, "dots": fixed("float64"), "out": WRITTEN},
        may_share=pairs(("a", "out"), ("b", "out")),
    ),
    Case(
        "adasum_pair",
        lambda r: lists(r, "a", "b", "out"),
        {"a": READ, "b": READ, "out": WRITTEN},
        may_share=pairs(("a", "out"), ("b", "out")),
    ),
    Case("unscale_and_check", lambda r: lists(r, "grads"), {"grads": WRITTEN}, {"inv_scale": 0.5}),
    Case(
        "tensor_statistics",
        lambda r: {**lists(r, "tensors"), "out": r.standard_normal((2, 6))},
        {"tensors": Argument(any_rows=True), "out": fixed("float64", True)},
        {"scale": 2.0},
    ),
    Case("centralize", lambda r: lists(r, "grads"), {"grads": WRITTEN}),
    of_schema("centralize"),
    Case(
        "dropout",
        lambda r: {"x": f32(r, 2, N), "out": f32(r, 2, N)},
        {"x": Argument(alone=True), "out": Argument(written=True, alone=True)},
        {"p": 0.5, "seed": 1},
        may_share=pairs(("x", "out")),
    ),
    Case(
        "dim_reduce_direction",
        lambda r: {
            "B": np.eye(K, dtype=np.float32),
            "B_next": f32(r, K, K),
            **{n: f32(r, K) for n in ("s", "gk_last", "gk", "dk")},
        },
        {
            **{n: fixed("float32") for n in ("B", "s", "gk_last")},
            **{n: fixed("float32", True) for n in ("B_next", "gk", "dk")},
        },
        {"started": True},
    ),
    Case(
        "dim_reduce_trial",
        lambda r: {**lists(r, "weights", "saved", "dn"), "step": f32(r, 2)},
        {"weights": WRITTEN, "saved": WRITTEN, "dn": READ32, "step": fixed("float32")},
        {"save": True},
    ),
    Case(
        "dim_reduce_apply",
        lambda r: lists(r, "momentum", "grads", "grad_proj", "dn", "out"),
        {"momentum": WRITTEN32, "grads": READ, "grad_proj": READ32, "dn": READ32, "out": WRITTEN32},
        RATES,
        may_share=pairs(("grad_proj", "out")),
    ),
    Case(
        "dim_reduce_apply",
        lambda r: {**lists(r, "momentum", "grads", "grad_proj", "dn", "out", "saved"), "lr": f32(r, 2)},
        {
            "momentum": WRITTEN32,
            "grads": READ,
            "grad_proj": READ32,
            "dn": READ32,
            "out": WRITTEN,
            "saved": READ,
            "lr": fixed("float32"),
        },
        RATES,
        may_share=pairs(("saved", "out")),
    ),
    Case(
        "loss_scale_update",
        lambda r: {"scale": np.ones(1, np.float32), "counters": np.array([1, 0, 0], np.int32)},
        {"scale": fixed("float32", True), "counters": fixed("int32", True)},
        {"overflow": True},
    ),
    Case(
        "covariance",
        lambda r: {"x": f32(r, 5, 4), "out": r.standard_normal((2, 3, 3))},
        {"x": Argument(ANY_FLOAT, alone=True, any_rows=True), "out": fixed("float64", True)},
    ),
    Case(
        "covariance",
        lambda r: {"x": np.array([1, 0, 1], np.int32), "out": r.standard_normal(3)},
        {n: Argument(t, n == "out", alone=True, any_rows=True) for n, t in (("x", "int32"), ("out", "float64"))},
        {"one_hot": True},
    ),
    Case(
        "damped_inverse",
        lambda r: {"matrices": [np.ones((2, 3, 3)), np.ones(4)], "out": [f32(r, 2, 3, 3), f32(r, 4)]},
        {"matrices": Argument("float64"), "out": WRITTEN32},
        {"damping": 0.5},
    ),
    Case(
        "precondition",
        lambda r: {
            **lists(r, "grads", "out"),
            "left": [f32(r, N), f32(r, 1, 2, 2)],
            "right": [f32(r, 1), f32(r, 2, 16, 16)],
        },
        {"grads": READ, "left": READ32, "right": READ32, "out": WRITTEN32},
    ),
    Case(
        "lars",
        lambda r: {**lists(r, "params", "grads"), "ratio": f32(r, 2), "decay_ratio": f32(r, 2)},
        {"params": READ, "grads": READ, **{n: fixed("float32", True) for n in ("ratio", "decay_ratio")}},
        native=lars,
    ),
    step("sgd_step", "accum", momentum=0.9, dampening=0.5),
    step("momentum_step", "moments"),
    step("adam_step", "moments1", "moments2", step=3),
    step("adam_step", "moments1", "moments2", "max_moments2", step=3),
    step("adam_weight_decay_step", "moments1", "moments2"),
    step("adamw_step", "moments1", "moments2", step=3),
    step("lamb_step", "moments1", "moments2", step=3),
    step("lion_step", "moments"),
    step("nadamw_step", "moments1", "moments2", step=3),
    step("ademamix_step", "moments1", "moments2", "slow_moments1", step=3, beta3_steps=5.0),
    step("adan_step", "moments", "squares", "differences", "last_grads", step=3),
    step("schedule_free_sgd_step", "z", averaging_weight=0.3),
    step("schedule_free_adamw_step", "z", "moments2", step=3, averaging_weight=0.3),
    step("adagrad_step", "accum"),
    step("proximal_adagrad_step", "accum", l1=0.1, l2=0.1),
    step("rmsprop_step", "mean_squares", "moments"),
    step("centered_rmsprop_step", "mean_grads", "mean_squares", "moments"),
    step("ftrl_step", "accum", "linear", lr_power=-0.3),
    Case(
        "adafactor_step",
        lambda r: {
            **{n: [f32(r, 3, 8), f32(r, 2, N)] for n in ("params", "grads", "moments")},
            "rows": [f32(r, 3) ** 2, f32(r, 2) ** 2],
            "columns": [f32(r, 8) ** 2, f32(r, N) ** 2],
        },
        {
            "params": WRITTEN,
            "grads": READ,
            "rows": WRITTEN32,
            "columns": WRITTEN32,
            "moments": Argument("float32 or float16", written=True),
        },
        {"step": 2, "beta1": 0.9, "squares": [None, None]},
    ),
    Case(
        "adafactor_step",
        lambda r: {n: [f32(r, N) ** 2, f32(r, 8) ** 2] for n in ("params", "grads", "squares")},
        {"params": WRITTEN, "grads": READ, "squares": Argument("float32 or float16", written=True)},
        {"step": 2, "lr": 0.1, "rows": [None, None], "columns": [None, None]},
    ),
    Case(
        "muon_step",
        lambda r: {n: [f32(r, 3, 8), f32(r, 2, N)] for n in ("params", "grads", "moments1")},
        {"params": WRITTEN, "grads": READ, "moments1": WRITTEN32},
        {"step": 2, "lr": 0.1},
    ),
    Case(
        "muon_step",
        lambda r: {
            "params": [f32(r, 8, 3).astype(np.float16), f32(r, N).astype(np.float16)],
            **{n: [f32(r, 8, 3) ** 2, f32(r, N) ** 2] for n in ("grads", "moments1", "moments2", "masters")},
        },
        {"params": WRITTEN, "grads": READ, **{n: WRITTEN32 for n in ("moments1", "moments2", "masters")}},
        {"step": 2, "lr": 0.1},
    ),
    Case(
        "apollo_step",
        lambda r: {
            **{n: [f32(r, 3, 8), f32(r, 2, N)] for n in ("params", "grads")},
            **{n: [f32(r, 2, 8) ** 2, f32(r, 1, max(2, N)) ** 2] for n in ("moments1", "moments2")},
            "norms": [f32(r, 1) ** 2, f32(r, 1) ** 2],
        },
        {"params": WRITTEN, "grads": READ, "moments1": WRITTEN32, "moments2": WRITTEN32, "norms": NUMBERS},
        {"step": 2, "lr": 0.1},
    ),
    Case(
        "apollo_step",
        lambda r: {
            "params": [f32(r, 8, 3).astype(np.float16), f32(r, N).astype(np.float16)],
            **{n: [f32(r, 8, 3) ** 2, f32(r, N) ** 2] for n in ("grads", "moments1", "moments2", "masters")},
        },
        {"params": WRITTEN, "grads": READ, **{n: WRITTEN32 for n in ("moments1", "moments2", "masters")}},
        {"step": 2, "lr": 0.1, "norms": [None, None]},
    ),
    Case(
        "galore_step",
        lambda r: {
            **{n: [f32(r, 3, 8), f32(r, 3, N)] for n in ("params", "grads")},
            **{n: [f32(r, 2, 8) ** 2, f32(r, 2, N) ** 2] for n in ("moments1", "moments2")},
            "projections": [f32(r, 3, 2), f32(r, 3, 2)],
        },
        {"params": WRITTEN, "grads": READ, "moments1": WRITTEN32, "moments2": WRITTEN32, "projections": WRITTEN32},
        {"step": 2, "lr": 0.1},
    ),
    Case(
        "galore_step",
        lambda r: {
            "params": [f32(r, 8, 3).astype(np.float16), f32(r, N).astype(np.float16)],
            **{n: [f32(r, 8, 3) ** 2, f32(r, N) ** 2] for n in ("grads", "moments1", "moments2", "masters")},
        },
        {"params": WRITTEN, "grads": READ, **{n: WRITTEN32 for n in ("moments1", "moments2", "masters")}},
        {"step": 2, "lr": 0.1, "projections": [None, None]},
    ),
    Case(
        "momentum_step",
        lambda r: {
            "params": [t.astype(np.float16) for t in lists(r, "params")["params"]],
            **lists(r, "grads", "moments", "masters"),
        },
        {"params": WRITTEN, "grads": READ, "moments": WRITTEN32, "masters": WRITTEN32},
        {"lr": 0.1},
    ),
    Case(
        "momentum_step",
        lambda r: {
            "params": f32(r, 8, N).astype(np.float16),
            "grads": f32(r, 3, N),
            **{n: f32(r, 8, N) for n in ("moments", "masters")},
            "indices": np.array([5, 0, 5], np.int32),
        },
        {
            "params": fixed(ANY_FLOAT, True),
            "grads": fixed(ANY_FLOAT),
            "indices": fixed("int32"),
            **{n: fixed("float32", True) for n in ("moments", "masters")},
        },
        {"lr": 0.1},
    ),
]


KNOWN = {*(case.op for case in CASES), "centralize_in_place"}
CASES += [of_schema(op) for op in _core.schemas() if op not in KNOWN]


def label(case: Case) -> str:
    """The op, and the argument that makes it another case."""
    for name, other in (
        ("lr", "saved"),
        ("indices", "indices"),
        ("masters", "masters"),
        ("max_moments2", "amsgrad"),
        ("squares", "vectors"),
    ):
        if name in case.arrays:
            return f"{case.op}+{other}"
    return case.op
