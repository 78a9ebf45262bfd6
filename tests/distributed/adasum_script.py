"""What test_adasum_ranks.py runs on ranks: main([FOLDER, CASE...]). Each rank writes what it ended with.

A case is ``DEVICES/MODE/DTYPES``, ``training``, or a variant of it by its name. The deltas of a node are a function of
its number, so that the test knows all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

SHAPES = ((3,), (), (40, 33), (2, 0), (5, 1, 7), (1,), (4096 + 17,))
FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CALLS = 2  # the second one meets a used vector


def dtypes_of(name: str) -> list[Any]:
    """The dtype of each tensor."""
    if name == "mixed":
        return [list(FLOATS.values())[i % 3] for i in range(len(SHAPES))]
    return [FLOATS[name]] * len(SHAPES)


def deltas(node: int, call: int, dtypes: list[Any]) -> list[Any]:
    """The last but one is zero on the even nodes, the first one the same everywhere."""
    draws = np.random.default_rng((node, call))
    found = [0.01 * draws.standard_normal(shape) for shape in SHAPES]
    found[0] = np.array([0.5, 0.25, -0.125])
    found[5] = np.array([float(node % 2)])
    return [np.asarray(array, np.float32).astype(dtype) for array, dtype in zip(found, dtypes, strict=True)]


def olds(dtypes: list[Any]) -> list[Any]:
    draws = np.random.default_rng(99)
    return [
        draws.standard_normal(shape).astype(np.float32).astype(dtype)
        for shape, dtype in zip(SHAPES, dtypes, strict=True)
    ]


def main(arguments: list[str]) -> None:
    import mindspore as ms
    from mindspore import Parameter, ParameterTuple, Tensor, nn
    from mindspore.communication import get_group_size, get_rank

    from boost_ext.boost import AdaSum

    def tensor(array: Any) -> Tensor:
        if array.dtype == ml_dtypes.bfloat16:
            return Tensor(array.astype(np.float32)).astype(ms.bfloat16)
        return Tensor(array)

    def numpy_of(t: Tensor) -> Any:
        return t.float().asnumpy() if t.dtype == ms.bfloat16 else t.asnumpy().copy()

    class Caller(nn.Cell):
        """A graph takes Parameters as attributes only."""

        def __init__(self, device_number: int, weights: ParameterTuple, old: ParameterTuple) -> None:
            super().__init__(auto_prefix=False)
            self.weights, self.old = weights, old
            self.adasum = AdaSum(rank, device_number, ranks // device_number, weights)

        def construct(self, *deltas: Tensor) -> Any:
            return self.adasum(deltas, self.weights, self.old)

    def parameters(arrays: list[Any], prefix: str) -> ParameterTuple:
        return ParameterTuple(
            Parameter(tensor(array), name=f"{prefix}{i}", requires_grad=False) for i, array in enumerate(arrays)
        )

    folder, cases = Path(arguments[0]), arguments[1:]
    rank, ranks = get_rank(), get_group_size()
    found: dict[str, Any] = {}
    for case in cases:
        if "/" not in case:
            import adasum_training

            whole = case == "training"
            found |= (
                adasum_training.everything(rank, ranks) if whole else adasum_training.one_variant(rank, ranks, case)
            )
            continue
        devices, mode, name = case.split("/")
        ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
        dtypes = dtypes_of(name)
        weights, old = parameters(olds(dtypes), "w"), parameters(olds(dtypes), "old")
        cell = Caller(int(devices), weights, old)
        for call in range(CALLS):
            out = cell(*map(tensor, deltas(rank // int(devices), call, dtypes)))
            for i, (weight, result) in enumerate(zip(weights, out, strict=True)):
                key = f"{case} {call} {i}"
                found[key] = numpy_of(weight)
                assert np.array_equal(numpy_of(result), found[key]), key
    np.savez(folder / f"rank_{rank}.npz", **found)
