"""Memory that an op writes belongs to one argument, except where the op's documentation says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .cases import CASES, Case, label, leaves
from .test_arguments import refused

TEXT = r"\w+.* is written and must not overlap other arguments, but it overlaps \w+"
TIES = ("unscale_and_check", "centralize", "clip_by_global_norm")  # a tensor that is listed twice is one tensor

PAIRS = [
    (case, written, other)
    for case in CASES
    for written, argument in case.arrays.items()
    for other in case.arrays
    if argument.written
]


def put(value: Any, old: np.ndarray, new: np.ndarray) -> Any:
    if isinstance(value, dict):
        return {n: put(v, old, new) for n, v in value.items()}
    if isinstance(value, list):
        return [put(v, old, new) for v in value]
    return new if value is old else value


def shared(
    case: Case, rng: np.random.Generator, written: str, other: str, shift: int, same_place: bool
) -> dict[str, Any] | None:
    """Valid arguments, but for an array of `other` that begins `shift` elements into one of `written`. They are at the
    same place of their lists or at different ones."""
    arguments = case.make(rng)
    mine = list(leaves(arguments[written]))[-1]
    theirs = list(leaves(arguments[other]))[-1 if same_place else 0]
    step = shift * max(mine.itemsize, theirs.itemsize)  # keeps both aligned
    if mine is theirs or step >= mine.nbytes:
        return None
    memory = np.zeros(step + mine.nbytes + theirs.nbytes, np.uint8)
    first = memory[: mine.nbytes].view(mine.dtype).reshape(mine.shape)
    second = memory[step : step + theirs.nbytes].view(theirs.dtype).reshape(theirs.shape)
    return put(put(arguments, mine, first), theirs, second)


@pytest.mark.parametrize(("case", "written", "other"), PAIRS, ids=[f"{label(c)}-{w}-{o}" for c, w, o in PAIRS])
@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("same_place", [True, False])
def test_overlaps(case, written, other, shift, same_place, rng):
    arguments = shared(case, rng, written, other, shift, same_place)
    if arguments is None:
        return
    alone = case.arrays[written].alone and case.arrays[other].alone  # no lists, so there is one place
    allowed = frozenset({written, other}) in case.may_share and (same_place or alone) and shift == 0
    if allowed:
        case(arguments)
    else:
        refused(case, arguments, ValueError, TEXT)


@pytest.mark.parametrize("case", [c for c in CASES if c.op not in TIES], ids=label)
def test_lists_may_not_write_a_tensor_twice(case, rng):
    for name, argument in case.arrays.items():
        arguments = case.make(rng)
        if argument.written and not argument.alone and case.op != "pca_back_project":
            arguments = {n: [v[0], v[0].copy()] if isinstance(v, list) else v for n, v in arguments.items()}
            arguments[name] = [arguments[name][0]] * 2
            refused(case, arguments, ValueError, TEXT)


def test_neighbours_do_not_overlap(rng):
    """Views of one flat buffer, side by side, as fused gradient buffers are."""
    for case in CASES:
        arguments = case.make(rng)
        arrays = list(leaves([*arguments.values()]))
        memory = np.zeros(sum(a.nbytes for a in arrays) // 8 + len(arrays), np.float64).view(np.uint8)
        at = 0
        for array in sorted(arrays, key=lambda a: -a.itemsize):
            place = memory[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            place[...] = array
            arguments = put(arguments, array, place)
            at += array.nbytes
        case(arguments)
