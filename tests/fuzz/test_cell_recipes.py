"""A few random trainings; `make fuzz` makes more."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from tests.fuzz.cell_checks import check
from tests.fuzz.cell_recipes import Recipe, recipes

worked = {True: 0, False: 0}


@settings(max_examples=8, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
@given(recipe=recipes())
def test_a_recipe_holds(recipe: Recipe) -> None:
    worked[check(recipe)] += 1


def test_some_train() -> None:
    assert worked[True] > 0
