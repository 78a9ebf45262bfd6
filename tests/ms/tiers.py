"""Which cases of a test `make test` runs, and which only `make test-all`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest


def standard(chosen: Callable[[SimpleNamespace], bool]) -> pytest.MarkDecorator:
    """For products of parameters that run the same code: the cases that `chosen` is false for are exhaustive.

    It gets the parameters of a case as attributes, and `graph`: whether its mode is GRAPH_MODE.
    """
    return pytest.mark.standard.with_args(chosen)


# A training cell compiles its step in both modes, to the same graph: one mode is enough for what is in the graph.
in_graph_mode = standard(lambda p: p.graph)
in_pynative_mode = standard(lambda p: not p.graph)
