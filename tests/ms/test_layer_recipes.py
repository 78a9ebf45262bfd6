"""A few random layers; `make fuzz` makes more."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from tests.fuzz.layer_recipes import Recipe, recipes

pytestmark = pytest.mark.usefixtures("graph_mode")
worked = {True: 0, False: 0}


@settings(max_examples=40, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
@given(recipe=recipes())
def test_a_layer_is_mindspores(recipe: Recipe) -> None:
    worked[recipe.check()] += 1


def test_most_compute() -> None:
    assert worked[True] > worked[False] > 0
