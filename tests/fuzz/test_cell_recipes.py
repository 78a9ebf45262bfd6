"""A few random trainings; `make fuzz` makes more."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from tests.fuzz.cell_checks import check
from tests.fuzz.cell_recipes import Recipe, recipes


@settings(max_examples=8, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
@given(recipe=recipes())
def test_a_recipe_holds(recipe: Recipe) -> None:
    check(recipe)
