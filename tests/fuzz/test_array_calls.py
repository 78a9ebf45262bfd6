"""The array boundary, some hundred calls of it; `make fuzz` makes more, under the address sanitizer."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from tests.fuzz.array_calls import Call, calls

computed = {True: 0, False: 0}


@settings(max_examples=500, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
@given(call=calls())
def test_a_call_computes_or_is_refused(call: Call) -> None:
    computed[call.check()] += 1


def test_both_happen() -> None:
    assert computed[True] > 50
    assert computed[False] > 50
