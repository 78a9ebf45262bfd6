"""Trainings of random settings, groups, tensors and scripts, some of them; `make fuzz-torch` makes more."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from tests.fuzz.torch_recipes import Recipe, recipes  # noqa: E402

worked = {True: 0, False: 0}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@settings(max_examples=80, database=None, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
@given(recipe=recipes())
def test_a_training_works_or_is_refused(recipe: Recipe) -> None:
    worked[recipe.check()] += 1


def test_many_work() -> None:
    assert worked[True] > 15
