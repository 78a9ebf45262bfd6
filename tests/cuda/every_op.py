"""Every op once over awkward sizes and dtypes, and with every setting that has a kernel of its own, on CUDA arrays: for
compute-sanitizer, and for the emulator, on which a kernel that is never launched is an error.

``PYTHONPATH=tests python tests/cuda/every_op.py [--short] [--say]`` needs no framework. It prints which ops ran and
which have no CUDA kernel. What is written beside an array is an error here, too: see tests/device.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import every_setting
import numpy as np

import boost_ext
import device
from dtypes import FLOATS
from ops import cases

# Around a pack of 8, a warp, a block's chunk of 4096; one that has an end and is not short.
SIZES = [1, 7, 9, 24, 31, 33, 4095, 4097, 9001]
SHORT = [1, 9, 24, 4097]
FIXED = {"precondition", "covariance", "damped_inverse", "bfgs_update", "dim_reduce_direction", "loss_scale_update"}
"""Those whose cases have sizes of their own."""
OF_PRODUCTS = {"muon_step", "orthogonalize"}
LARGEST = 2_051
"""Of those, which multiply matrices fifteen times: two blocks of elements, and 33 tiles."""
NO_KERNEL = "has a CPU kernel only"


def stored(value: Any, dtype: np.dtype[Any], odd: bool) -> Any:
    """Arrays in another dtype; `odd`: not aligned to more than an element."""
    if isinstance(value, list):
        return [stored(item, dtype, odd) for item in value]
    memory = np.empty(value.size + odd, dtype)
    array = memory[int(odd) :].reshape(value.shape)
    array[...] = value
    return array


def arguments(case: cases.Case, dtype: np.dtype[Any], odd: bool) -> dict[str, Any]:
    given = case.make(np.random.default_rng(1))
    free = {name for name, argument in case.arrays.items() if argument.dtype in (cases.ANY_FLOAT, cases.MATRIX)}
    free = {name for name in free if getattr(given[name], "dtype", None) != np.int8}
    return {name: stored(value, dtype, odd) if name in free else value for name, value in given.items()}


def calls(sizes: list[int]) -> Iterator[tuple[cases.Case, str, dict[str, Any]]]:
    """Every case with what it is called with, and a name for that."""
    usual = cases.N
    for case in cases.CASES:
        if case.op in device.OF_THE_CPU:
            continue
        largest = LARGEST if case.op in OF_PRODUCTS else max(sizes)
        for size in [usual] if case.op in FIXED else dict.fromkeys(min(s, largest) for s in sizes):
            for name, dtype in FLOATS.items():
                if "masters" in case.arrays and name == "float32":  # has none
                    continue
                for odd in (False, True):
                    cases.N = size
                    try:
                        given = arguments(case, dtype, odd)
                    finally:
                        cases.N = usual
                    yield case, f"{cases.label(case)} {size} {name}{' odd' * odd}", given


def main(sizes: list[int], say: bool = False) -> None:
    """Run all of them on what `device.install` has chosen, and `say` which, for whoever may be stopped."""
    ran: dict[str, int] = {}
    refused = set(device.OF_THE_CPU)
    for case, name, given in calls(sizes):
        label = cases.label(case)
        if say:
            print(name, file=sys.stderr, flush=True)
        try:
            case(given)
        except RuntimeError as error:
            if NO_KERNEL not in str(error):
                raise RuntimeError(f"{name}: {error}") from error
            refused.add(label)
        except Exception as error:
            raise RuntimeError(f"{name}: {error}") from error
        else:
            ran[label] = ran.get(label, 0) + 1
    settings = 0
    for name, call in every_setting.calls():
        if say:
            print(name, file=sys.stderr, flush=True)
        try:
            call(np.random.default_rng(1))
        except Exception as error:
            raise RuntimeError(f"{name}: {error}") from error
        settings += 1
    ran["settings"] = settings
    print(f"ran: {', '.join(f'{op} ({count})' for op, count in sorted(ran.items()))}")
    print(f"no CUDA kernel: {', '.join(sorted(refused)) or 'none'}")


def require_all_launched() -> None:
    """On the emulator, whose build has the same kernels as one by nvcc."""
    every, launched = every_setting.launched()
    if unknown := launched - every:
        raise RuntimeError(f"launched, and not in the list of kernels: {'; '.join(sorted(unknown))}")
    missing = sorted(every - launched)
    print(f"kernels launched: {len(every & launched)} of {len(every)}")
    if missing:
        raise RuntimeError(f"{len(missing)} kernels were never launched: {'; '.join(missing)}")


if __name__ == "__main__":
    device.install("cuda")
    main(SHORT if "--short" in sys.argv else SIZES, "--say" in sys.argv)
    if boost_ext.build_info()["cuda"]["emulated"]:
        require_all_launched()
