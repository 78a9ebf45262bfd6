"""What _core.schemas() says is what the tests that all ops share, and the documentation, go by."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from boost_ext import _core, ops

from .cases import CASES, Case, label
from .steps import FACTS

SCHEMAS = _core.schemas()
ROOT = Path(__file__).parents[2]


def test_every_function_with_a_schema_is_described() -> None:
    """Not those that MindSpore's cells alone call: they have tests of their own."""
    headers = "".join(header.read_text() for header in (ROOT / "csrc" / "ops").glob("*.h"))
    named = re.findall(r'constexpr Schema \w+\{"(\w+)"(?:[^}]*"(\w+)")?', headers)
    declared = {function or op for op, function in named}
    assert {*SCHEMAS} == {op for op in declared if hasattr(_core, op)}


def test_results_are_made_where_none_is_given() -> None:
    a, b = [np.float32([3, 4])], [np.float32([4, 3])]
    given = np.empty((1, 3))
    assert _core.adasum_dots(a, b, given) is given
    made = _core.adasum_dots(a, b, None)
    assert made.dtype == np.float64
    np.testing.assert_array_equal(made, given)
    assert _core.unscale_and_check(a, 0.5, None, None) is False
    rows, found = _core.unscale_and_check(a, 2.0, True, None)
    assert found is False
    assert rows.tolist() == [[0, 0, -1, 4]]


def test_a_list_that_only_some_calls_write() -> None:
    frozen = np.float32([3, 4])
    frozen.flags.writeable = False
    assert _core.unscale_and_check([frozen], 1.0, None, None) is False
    with pytest.raises(ValueError, match=r"^unscale_and_check: grads\[0\] must be writable, got a read-only array$"):
        _core.unscale_and_check([frozen], 0.5, None, None)
    weights, direction = np.zeros(2, np.float32), np.ones(2, np.float32)
    _core.dim_reduce_trial([weights], [frozen], [direction], 1.0, False)
    assert weights.tolist() == [4, 5]
    with pytest.raises(ValueError, match=r"^dim_reduce_trial: saved\[0\] must be writable, got a read-only array$"):
        _core.dim_reduce_trial([weights], [frozen], [direction], 1.0, True)


@pytest.mark.parametrize("case", [c for c in CASES if c.op in SCHEMAS], ids=label)
def test_cases(case: Case) -> None:
    taken = {a["name"]: a for a in SCHEMAS[case.op]}
    for name, argument in case.arrays.items():
        if taken.get(name, {}).get("dtypes"):
            dtypes = set(re.split(", | or ", argument.dtype))
            assert dtypes <= set(taken[name]["dtypes"]), name
            in_place = "out" in taken and "out" not in case.arrays  # centralize_in_place
            assert taken[name]["written"] or in_place or not argument.written, name


def test_documentation() -> None:
    """The column of dtypes in docs/cuda.md, where it names any."""
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*float16[^|]*) \|", (ROOT / "docs" / "cuda.md").read_text(), re.M)
    checked = set()
    for names, dtypes in rows:
        for op in set(re.findall(r"`(\w+)`", names)) & set(SCHEMAS):
            taken = {t for a in SCHEMAS[op] for t in a["dtypes"]}
            assert set(re.findall(r"b?float\d+|int8", dtypes)) == taken & {"float32", "float16", "bfloat16", "int8"}, op
            checked.add(op)
    assert len(checked) > 8


def test_documentation_of_ascend() -> None:
    """The column of dtypes in docs/ascend.md: its kernels take no others than the schema, and may take fewer."""
    rows = re.findall(r"^\| `(\w+)`[^|]* \| ([^|;]+)", (ROOT / "docs" / "ascend.md").read_text(), re.M)
    named = {op: set(dtypes.strip().split(", ")) for op, dtypes in rows if op in SCHEMAS}
    assert len(named) == 5
    for op, dtypes in named.items():
        assert dtypes <= {t for a in SCHEMAS[op] for t in a["dtypes"]}, op


def test_the_rules_without_a_row() -> None:
    assert {*_core.optimizer_rules()} - {*FACTS} == {"adafactor", "muon", "apollo", "galore"}


@pytest.mark.parametrize("rule", FACTS)
def test_the_steps_take_what_their_rules_say(rule: str) -> None:
    """boost_ext.ops has the states, hyperparameters and defaults of the native table, in its order."""
    facts = FACTS[rule]
    taken = inspect.signature(getattr(ops, f"{rule}_step")).parameters
    states = [n for n, p in taken.items() if p.kind is p.POSITIONAL_OR_KEYWORD][2:]
    assert states == facts["states"]
    assert sum(taken[n].default is None for n in states) == facts["optional_states"]
    hyper = {n: p.default for n, p in taken.items() if n not in (*states, "params", "grads", "lr", "step", "first")}
    hyper.pop("options")
    hyper = {n: None if default is inspect.Parameter.empty else default for n, default in hyper.items()}
    assert hyper == facts["hyper"]
    assert list(hyper) == list(facts["hyper"])
