"""Wrong objects of every kind, in place of any argument of any op: Python exceptions come out, and nothing else."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .cases import CASES, Case, label
from .test_arguments import last_replaced


class Liar:
    """Says that it speaks DLPack."""

    def __init__(self, device: Any, answer: Any) -> None:
        self.device, self.answer = device, answer

    def __dlpack_device__(self) -> Any:
        if isinstance(self.device, Exception):
            raise self.device
        return self.device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class OnlyDevice:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


ASKED = ("shape", "dtype", "device", "data_ptr", "is_contiguous", "__dlpack__", "__dlpack_device__", "__array__")


class Unfriendly:
    def __getattr__(self, name: str) -> Any:
        raise (RuntimeError if name in ASKED else AttributeError)(f"unfriendly {name}")

    def __len__(self) -> int:
        raise RuntimeError("unfriendly length")


class Proxy:
    """Looks like an array to hasattr only."""

    def __getattr__(self, name: str) -> Any:
        if name in ASKED:
            return lambda *args, **kwargs: None
        raise AttributeError(name)


class Color(enum.IntEnum):
    RED = 1


DTYPES = ["f2", "f4", "f8", "i4", "i8", "u1", "?", "c8", "g", ">f4", "S2", "U1", "O", "M8[s]", "V3", "f4,i2"]
SHAPES = st.sampled_from([(), (0,), (1,), (3,), (24,), (2, 24), (3, 72), (0, 3), (3, 0), (1,) * 9, (2, 3, 4)])


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    array = np.zeros(draw(SHAPES), np.dtype(draw(st.sampled_from([*DTYPES, ml_dtypes.bfloat16, ml_dtypes.int4]))))
    change = draw(st.integers(0, 6))
    if change == 1:
        array.flags.writeable = False
    elif change == 2 and array.ndim:
        array = array[::-1]
    elif change == 3:
        array = array.T
    elif change == 4:
        array = np.broadcast_to(array, (2, *array.shape))
    elif change == 5:
        array = np.ma.masked_array(array)
    elif change == 6 and array.size:
        return array.reshape(-1)[0]
    return array


ANSWERS = st.sampled_from([None, 3, "capsule", object(), np.zeros(3), BufferError("no"), TypeError("no"), KeyError(1)])
DEVICES = st.sampled_from([(1, 0), (2, 0), (3, 0), (13, 1), (4, 0), (-1, 0), (1,), (), None, 1, "cpu", ("1", 0),
                           (1, 0, 0), (2**70, 0), (1.5, 0), ValueError("no"), (Color.RED, 0)])  # fmt: skip
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=3),
    st.binary(max_size=3),
    arrays(),
    st.builds(Liar, DEVICES, ANSWERS),
    st.builds(lambda a: memoryview(a) if a.dtype.kind in "fi" else a, st.just(np.zeros(24, np.float32))),
    st.sampled_from([object(), Unfriendly(), Proxy(), OnlyDevice(), Liar, Color.RED, np.ndarray, int, len, np, ...]),
)
THINGS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=2),
    ),
    max_leaves=4,
)


@settings(max_examples=600, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
@given(case=st.sampled_from(CASES), data=st.data())
def test_only_documented_exceptions_come_out(case, data):
    arguments = {**case.settings, **case.make(np.random.default_rng(0))}
    names = data.draw(st.lists(st.sampled_from(sorted(arguments)), min_size=1, max_size=3, unique=True))
    for name in names:
        thing = data.draw(THINGS, label=f"{label(case)}: {name}")
        whole = data.draw(st.booleans())
        arguments[name] = thing if whole else last_replaced(arguments[name], lambda a, t=thing: t)
    error = outcome(case, arguments)
    documented = error is None or type(error) in (TypeError, ValueError)
    assert documented or "this build has no CUDA kernels" in str(error) or "unfriendly" in str(error), repr(error)


def outcome(case: Case, arguments: dict[str, Any]) -> Exception | None:
    try:
        case(arguments)
    except Exception as error:
        return error
    return None
