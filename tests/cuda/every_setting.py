"""Calls that launch the kernels which tests/ops/cases.py alone does not: settings, storage types and shapes.

``launched`` says which kernels of this build have run: the emulator keeps a record."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext import _core, ops
from boost_ext.ops.projection_codes import PROJECTION_BLOCK
from dtypes import FLOATS, normal
from ops.steps import FACTS

KERNELS = Path(__file__).parents[2] / "kernels" / "cuda"
STATES = {rule: len(facts["states"]) for rule, facts in FACTS.items()} | {"adam": 2}  # without AMSGrad
NARROW = [rule for rule, facts in FACTS.items() if facts["narrow_state"]]
NEEDED = {rule: {n: 0.5 for n, v in facts["hyper"].items() if v is None} for rule, facts in FACTS.items()}
STEPPED = [rule for rule, facts in FACTS.items() if facts["corrected"]]
SIZES = (5, 300, 4097)
ROWS = ((3, 9), (2, 24), (2, 40_000), (2, 30_003), (2, 70_000), (2, 70_001))  # of centralize: short, long, shared


def step(rule: str, rng: np.random.Generator, *, states: int | None = None, **options: Any) -> None:
    """Of some vectors and a matrix."""
    count = STATES[rule] if states is None else states
    shapes = [*((n,) for n in SIZES), (6, 50)]
    params, grads, *state = ([abs(normal(rng, s)) for s in shapes] for _ in range(2 + count))
    known = NEEDED[rule] | ({"step": 1} if rule in STEPPED else {})
    if rule == "sgd" and count:
        known["momentum"] = 0.9
    getattr(ops, f"{rule}_step")(params, grads, *state, lr=0.1, **{**known, **options})


def step_rows(
    rule: str, rng: np.random.Generator, *, width: int = 24, states: int | None = None, **options: Any
) -> None:
    """Of a table: of few of its rows, one of them twice."""
    count = STATES[rule] if states is None else states
    dtype = options.pop("state", np.float32)
    state = [abs(normal(rng, (40, width))).astype(dtype) for _ in range(count)]
    index = np.array([7, 0, 39, 7], np.int32)
    known = NEEDED[rule] | ({"step": 1} if rule in STEPPED else {})
    if rule == "sgd" and count:
        known["momentum"] = 0.9
    arrays = normal(rng, (40, width)), normal(rng, (4, width))
    getattr(ops, f"{rule}_step")(*arrays, *state, lr=0.1, indices=index, **known, **options)


def narrow(rule: str, rng: np.random.Generator, bits: int, **options: Any) -> None:
    params, grads = ([normal(rng, n) for n in SIZES] for _ in range(2))
    states = range(STATES[rule])
    if bits == 16:
        state = [[abs(normal(rng, n)).astype(FLOATS["bfloat16"]) for n in SIZES] for _ in states]
    else:
        state = [[np.full(n, 3, np.uint8) for n in SIZES] for _ in states]
        options["scales"] = [[np.ones(-(-n // 256), np.float32) for n in SIZES] for _ in states]
    getattr(ops, f"{rule}_step")(params, grads, *state, lr=0.1, step=1, **options)


def direction(rng: np.random.Generator, started: bool) -> None:
    B, B_next = np.eye(5, dtype=np.float32), np.eye(5, dtype=np.float32)
    s, last, gk, dk = (normal(rng, 5) for _ in range(4))
    ops.dim_reduce_direction(B, s, last, started, gk, B_next, dk)


def convolution(rng: np.random.Generator) -> None:
    out = np.empty((1, 18, 18))
    ops.covariance(normal(rng, (3, 2, 20, 20)), out, kernel=(3, 3), padding=(1, 1, 1, 1))


def projections(rng: np.random.Generator, dtype: Any, vectors: int) -> None:
    P = normal(rng, (3, 4099 * 2), dtype)
    out = [[np.empty(4097, np.float32), np.empty(4101, np.float32)] for _ in range(vectors)]
    ops.pca_back_project(P, [normal(rng, 3) for _ in range(vectors)], out)
    ops.pca_project(P, out[0], np.empty(3, np.float32))


def codes(rng: np.random.Generator, vectors: int, sizes: tuple[int, int]) -> None:
    n = sum(sizes)
    P, scale = rng.integers(-127, 128, (3, n), np.int8), normal(rng, (3, -(-n // PROJECTION_BLOCK)))
    out = [[np.empty(size, np.float32) for size in sizes] for _ in range(vectors)]
    ops.pca_back_project(P, [normal(rng, 3) for _ in range(vectors)], out, scale=scale)
    ops.pca_project(P, out[0], np.empty(3, np.float32), scale=scale)


def adafactor(rng: np.random.Generator, **options: Any) -> None:
    """A small matrix, large ones in tiles, and a vector."""
    shapes = [(3, 8), (70, 64), (33, 61), (300,)]
    params, grads = ([normal(rng, s) for s in shapes] for _ in range(2))
    rows = [abs(normal(rng, s[0])) if len(s) > 1 else None for s in shapes]
    columns = [abs(normal(rng, s[1])) if len(s) > 1 else None for s in shapes]
    squares = [None if len(s) > 1 else abs(normal(rng, s)) for s in shapes]
    ops.adafactor_step(params, grads, rows, columns, squares, step=2, **options)


def muon(rng: np.random.Generator, **options: Any) -> None:
    """Matrices in both forms of the iteration, and a vector by AdamW."""
    shapes = [(9, 11), (70, 7), (5, 90), (300,)]
    params, grads = ([normal(rng, s) for s in shapes] for _ in range(2))
    first, second = ([np.zeros(s, np.float32) for s in shapes] for _ in range(2))
    ops.muon_step(params, grads, first, [None, None, None, second[3]], lr=0.1, step=2, **options)


def apollo(rng: np.random.Generator, rank: int, **options: Any) -> None:
    """Matrices of both forms, of more than one block, and a vector by AdamW."""
    shapes = [(9, 80), (70, 12), (200, 33), (300,)]
    sizes = [(rank, 80), (70, rank), (200, rank), (300,)]
    params, grads = ([normal(rng, s) for s in shapes] for _ in range(2))
    first, second = ([np.zeros(s, np.float32) for s in sizes] for _ in range(2))
    norms = [np.zeros(1, np.float32) for _ in range(3)]
    ops.apollo_step(params, grads, first, second, [*norms, None], lr=0.1, step=2, **options)


def large(rng: np.random.Generator) -> None:
    """What cuBLAS multiplies, where there is one."""
    n = 257
    x, out, identity = normal(rng, (n, n)), np.empty((n, n), np.float32), np.eye(n, dtype=np.float32)[None]
    ops.orthogonalize(x, out)
    ops.precondition(x, identity, identity, out, inv_scale=0.5)
    ops.damped_inverse(np.eye(n)[None], out[None])


def matrices(rng: np.random.Generator, dtype: Any) -> None:
    k = 19
    ops.bfgs_update(np.eye(k, dtype=dtype), np.ones(k, dtype), np.ones(k, dtype))


def calls() -> Iterator[tuple[str, Callable[[np.random.Generator], Any]]]:
    yield "unscale_and_check report", lambda r: ops.unscale_and_check([normal(r, n) for n in SIZES], 0.5, report=True)
    yield "accumulate first", lambda r: ops.accumulate([normal(r, 9)], [normal(r, 9)], 0.5, first=True)
    yield "clip_by_global_norm", lambda r: ops.clip_by_global_norm([normal(r, n) for n in SIZES], 0.5)
    for clip in (False, True):
        yield f"lars_ratios clip={clip}", lambda r, c=clip: ops.lars_ratios([normal(r, 9)], [normal(r, 9)], use_clip=c)
    for name, dtype in FLOATS.items():
        yield (
            f"centralize {name}",
            lambda r, t=dtype: ops.centralize([normal(r, s, t) for s in ROWS]),
        )
        yield (
            f"centralize {name} unaligned",
            lambda r, t=dtype: ops.centralize([normal(r, 2 * n + 1, t)[1:].reshape(2, n) for _, n in ROWS]),
        )
        yield (
            f"centralize {name} to others",
            lambda r, t=dtype: ops.centralize([normal(r, 300, t)], [np.empty(300, t)]),
        )
        for vectors in (1, 2, 4):
            yield f"projections {name} {vectors}", lambda r, t=dtype, v=vectors: projections(r, t, v)
    for vectors in (1, 2, 4):
        for sizes in ((4097, 4101), (4096, 4112)):  # of which those of 16 bytes have a kernel of their own
            yield f"projections codes {vectors} {sizes}", lambda r, v=vectors, s=sizes: codes(r, v, s)
    for started in (False, True):
        yield f"dim_reduce_direction started={started}", lambda r, s=started: direction(r, s)
    for save in (False, True):
        yield (
            f"dim_reduce_trial save={save}",
            lambda r, s=save: ops.dim_reduce_trial([normal(r, 300)], [normal(r, 300)], [normal(r, 300)], 0.5, save=s),
        )
    yield "covariance in parts", lambda r: ops.covariance(normal(r, (3000, 5)), np.empty((1, 5, 5)))
    yield "covariance of a convolution", convolution
    yield (
        "precondition by diagonals",
        lambda r: ops.precondition(
            [normal(r, (9, 7)), normal(r, 300)],
            [normal(r, 9), np.empty(0, np.float32)],
            [normal(r, 7), np.empty(0, np.float32)],
            [np.empty((9, 7), np.float32), np.empty(300, np.float32)],
        ),
    )
    yield "large matrices", large
    for name in ("float32", "float64"):
        yield f"bfgs_update {name}", lambda r, t=name: matrices(r, t)
    for centralize in (False, True):
        yield f"adafactor_step centralize={centralize}", lambda r, c=centralize: adafactor(r, centralize=c)
        yield f"muon_step centralize={centralize}", lambda r, c=centralize: muon(r, centralize=c)
        for rank in (1, 7):
            yield (
                f"apollo_step centralize={centralize} rank={rank}",
                lambda r, c=centralize, k=rank: apollo(
                    r, k, centralize=c, scale_type="tensor" if k == 1 else "channel"
                ),
            )
    for rule in STATES:
        for setting in ({}, {"centralize": [False, False, False, True], "weight_decay": 0.1}):
            yield f"{rule}_step {setting}", lambda r, u=rule, o=setting: step(u, r, **o)
            if rule != "lamb":
                o = {**setting, "centralize": bool(setting)} if setting else {}
                yield f"{rule}_step rows {o}", lambda r, u=rule, o=o: step_rows(u, r, **o)
    yield "sgd_step plain", lambda r: step("sgd", r, states=0)
    yield "sgd_step plain rows", lambda r: step_rows("sgd", r, states=0)
    yield "adam_step amsgrad", lambda r: step("adam", r, states=3)
    yield "adam_step amsgrad rows", lambda r: step_rows("adam", r, states=3)
    for rule, count in [*((u, STATES[u]) for u in STEPPED), ("adam", 3)]:
        one = np.ones(1, np.int32)
        yield (
            f"{rule}_step, {count} states, at a step in an array",
            lambda r, u=rule, k=count, t=one: step(u, r, states=k, step=t),
        )
    for rule in NARROW:
        for bits in (8, 16):
            yield f"{rule}_step {bits} bits", lambda r, u=rule, b=bits: narrow(u, r, b)
        if rule != "lamb":
            yield (
                f"{rule}_step rows 16 bits",
                lambda r, u=rule: step_rows(
                    u, r, width=300, state=FLOATS["bfloat16"], **({} if u in STEPPED else {"step": 1})
                ),
            )


def kernel_names() -> set[str]:
    """What the sources call their kernels, without the arguments of templates."""
    bounds = r"(?:__launch_bounds__\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s+)?"
    found: set[str] = set()
    for path in [*KERNELS.glob("*.cu"), *KERNELS.glob("*.cuh")]:
        found |= set(re.findall(rf"__global__\s+void\s+{bounds}(\w+)\(", path.read_text()))
    return found


def symbols(path: Path) -> dict[int, str]:
    """The functions of a library by their offset."""
    listing = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([0-9a-f]+) [tTwW] (.+)$", listing, re.MULTILINE)
    return {int(at, 16): " ".join(name.split()) for at, name in found}


def kernels(functions: dict[int, str]) -> dict[int, str]:
    """Those of them that are kernels, and not parts of one, nor functions of the host that have its name."""
    names = "|".join(sorted(kernel_names()))
    pattern = re.compile(
        rf"(?:void )?boost_ext::cuda::(?:\(anonymous namespace\)::)?(?:{names})(?:<.*>)?\((?!boost_ext::Context const&)"
    )
    part = re.compile(r"\{lambda|\[clone")
    return {at: name for at, name in functions.items() if pattern.match(name) and not part.search(name)}


def launched() -> tuple[set[str], set[str]]:
    """The kernels of this build, which is for the emulator, and those of them that have been launched."""
    library = ctypes.CDLL(_core.__file__)
    most = 1000
    offsets = (ctypes.c_uint64 * most)()
    count = library.boost_ext_cuda_launched(offsets, ctypes.c_int64(most))
    assert count <= most
    known = symbols(Path(_core.__file__))
    if not known:
        raise RuntimeError("the emulated build has no symbols: was it stripped?")
    return set(kernels(known).values()), {known[at] for at in offsets[:count]}
