"""What all ops share: an argument that cannot be used is refused by name, and nothing has been written then."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from boost_ext import ops

from .cases import CASES, CODES, NUMBERS, Argument, Case, label, leaves

EACH_OP = pytest.mark.parametrize("case", CASES, ids=label)


def each_argument(
    wanted: Callable[[Case, Argument], bool] = lambda case, argument: True,
) -> pytest.MarkDecorator:
    found = [(c, n) for c in CASES for n, argument in c.arrays.items() if wanted(c, argument)]
    return pytest.mark.parametrize(("case", "name"), found, ids=[f"{label(c)}-{n}" for c, n in found])


def refused(case: Case, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    arrays = list(leaves(list(arguments.values())))
    before = [a.tobytes() for a in arrays]
    with pytest.raises(error, match=f"^{case.op}: {text}"):
        case(arguments)
    for array, was in zip(arrays, before, strict=True):
        assert array.tobytes() == was


def refused_last(case: Case, rng: np.random.Generator, name: str, new: Any, error: type[Exception], text: str) -> None:
    """The last array of an argument is replaced by new(array). It is called name, name[1] or name[1][1] then."""
    arguments = case.make(rng)
    spelled, value = name, arguments[name]
    while isinstance(value, list):
        spelled, value = f"{spelled}[{len(value) - 1}]", value[-1]
    arguments[name] = last_replaced(arguments[name], new)
    refused(case, arguments, error, f"{re.escape(spelled)} {text}")


def last_replaced(value: Any, new: Any) -> Any:
    if isinstance(value, list):
        return [*value[:-1], last_replaced(value[-1], new)]
    return new(value)


@EACH_OP
def test_the_cases_are_valid(case, rng):
    case(case.make(rng))


@EACH_OP
def test_lists_may_be_tuples(case, rng):
    arguments = case.make(rng)
    lists = copy.deepcopy(arguments)
    case({n: tuple(v) if isinstance(v, list) else v for n, v in arguments.items()})
    case(lists)
    for one, two in zip(leaves([*arguments.values()]), leaves([*lists.values()]), strict=True):
        np.testing.assert_array_equal(one, two)


@each_argument()
def test_dtype_of_python_integers(case, name, rng):
    """np.array([1, 0, 0]) is int64: the message must say what this very argument takes."""
    text = f"must be ({case.arrays[name].dtype}|float32, bfloat16 or uint8), got int64$"
    refused_last(case, rng, name, lambda a: np.zeros(a.shape, np.int64), TypeError, text)


@each_argument()
def test_dtypes_nobody_takes(case, name, rng):
    for dtype in (np.int16, np.complex64, np.longdouble, object, "U3", "datetime64[s]", [("x", "f4")]):
        text = f"must be .*, got {re.escape(np.dtype(dtype).name)}$"
        refused_last(case, rng, name, lambda a, d=dtype: np.zeros(a.shape, d), TypeError, text)


@each_argument()
@pytest.mark.parametrize("dtype", ["float64", "int32", "bool"])
def test_dtypes_that_another_argument_takes(case, name, dtype, rng):
    takes = case.arrays[name].dtype
    if dtype not in takes:  # a list that goes with another one takes its dtype, which is float32 here
        text = f"must be ({takes}|float32|float32, bfloat16 or uint8), got {dtype}$"
        refused_last(case, rng, name, lambda a: np.zeros(a.shape, dtype), TypeError, text)


def every_second(a: np.ndarray) -> np.ndarray:
    return np.repeat(a, 2, axis=-1)[..., ::2]


def backwards(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a[..., ::-1])[..., ::-1]


def all_in_one_place(a: np.ndarray) -> np.ndarray:
    return np.broadcast_to(a.reshape(-1)[0], a.shape)


@each_argument(lambda case, argument: argument is not case.arrays.get("scale") and argument is not NUMBERS)
@pytest.mark.parametrize("new", [every_second, backwards, all_in_one_place])
def test_strided_arrays(case, name, new, rng):
    text = "must be C-contiguous, got a strided array$"
    refused_last(case, rng, name, new, ValueError, text)


def unaligned(a: np.ndarray) -> np.ndarray:
    memory = np.zeros(a.nbytes + 1, np.uint8)
    return memory[1:].view(a.dtype).reshape(a.shape)


@each_argument(lambda case, argument: argument is not CODES)
def test_unaligned_arrays(case, name, rng):
    text = "must be aligned to its element size, got an unaligned array$"
    refused_last(case, rng, name, unaligned, ValueError, text)


@each_argument(lambda case, argument: argument is not CODES)
def test_foreign_byte_order(case, name, rng):
    text = "must be in native byte order, got >[fi][248]$"
    refused_last(case, rng, name, lambda a: a.astype(a.dtype.newbyteorder()), ValueError, text)


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


@each_argument(lambda case, argument: argument.written)
def test_read_only_arrays_are_not_written(case, name, rng):
    refused_last(case, rng, name, read_only, ValueError, "must be writable, got a read-only array$")


@each_argument(lambda case, argument: not argument.written)
def test_read_only_arrays_are_read(case, name, rng):
    arguments = case.make(rng)
    arguments[name] = last_replaced(arguments[name], read_only)
    case(arguments)


@each_argument(lambda case, argument: len(case.arrays) > 1 and not argument.any_rows)
def test_sizes_that_do_not_fit(case, name, rng):
    for new in (lambda a: np.concatenate([a, a]), lambda a: a[:0]):
        arguments = case.make(rng)
        arguments[name] = last_replaced(arguments[name], new)
        refused(case, arguments, ValueError, r"\w+.* must .*, got ")


NO_ARRAYS = ["abc", b"abc", 1j, object(), {}, {1.0}, range(3), len, np, (x for x in [1.0]), np.float32(1)]
NOT_FOR_LISTS = [None, 3, 2.5, True]  # None and numbers mean something as `out`, `saved` and `step`
AN_ARRAY = r"must be an array( or a list or tuple of arrays)? \(NumPy, MindSpore or DLPack\), got"


@each_argument()
def test_objects_that_are_no_arrays(case, name, rng):
    for thing in NO_ARRAYS:
        if name in ("step", "lr") and isinstance(thing, np.generic):
            continue
        text = f"{name} {AN_ARRAY} {type(thing).__name__.rpartition('.')[2]}$"
        if case.op == "pca_back_project" and name == "out":
            text = f"out must be a list or tuple of lists of arrays, got {type(thing).__name__}$"
        refused(case, {**case.make(rng), name: thing}, TypeError, text.replace(" float32$", r" numpy\.float32$"))


@each_argument(lambda case, argument: not argument.alone)
def test_bad_elements_of_lists(case, name, rng):
    for thing in [*NO_ARRAYS, *NOT_FOR_LISTS]:
        optional = name in ("masters", "norms", "projections", "rows", "columns", "squares")
        optional = optional or (case.op, name) == ("muon_step", "moments2")
        if optional and thing is None:  # not every parameter has one
            continue
        kind = type(thing).__name__ if not isinstance(thing, np.generic) else r"numpy\.float32"
        if thing is None:
            kind = r"None \(a parameter without a gradient is left out, in every list\)"
        refused_last(case, rng, name, lambda a, t=thing: t, TypeError, f"{AN_ARRAY} {kind}$")


@each_argument()
def test_lists_nested_too_deep(case, name, rng):
    refused_last(case, rng, name, lambda a: [[a]], TypeError, f"{AN_ARRAY} list$")


@pytest.mark.parametrize("kind", [np.ndarray, int, np.float32, np.dtype])
def test_classes_are_no_arrays(kind):
    """numpy.ndarray itself has a __dlpack__, too."""
    with pytest.raises(TypeError, match=f"^global_norm: tensors {AN_ARRAY} "):
        ops.global_norm(kind)


def test_a_list_that_holds_itself():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match=rf"^global_norm: tensors\[0\] {AN_ARRAY} list$"):
        ops.global_norm(endless)


@each_argument(lambda case, argument: not argument.alone)
def test_empty_lists(case, name, rng):
    refused(case, {**case.make(rng), name: []}, ValueError, r"\w+.* must h.*, got (0|1|an empty list)$")


@each_argument(lambda case, argument: not argument.alone and len(case.arrays) > 1)
def test_lists_of_other_lengths(case, name, rng):
    arguments = case.make(rng)
    refused(case, {**arguments, name: arguments[name][:1]}, ValueError, r"\w+.* must .*, got ")


@EACH_OP
def test_missing_and_unknown_arguments(case, rng):
    arguments = case.make(rng)
    with pytest.raises(TypeError):
        case({**arguments, "unknown": 1})
    del arguments[next(iter(arguments))]
    with pytest.raises(TypeError):
        case(arguments)
