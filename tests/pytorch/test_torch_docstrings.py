"""The examples in the docstrings of boost_ext.torch; and every public name has one."""

from __future__ import annotations

import doctest
import inspect

import pytest

pytest.importorskip("torch")

from tests.docs import docstrings

from boost_ext import torch as boost

WITHOUT = {"FusedOptimizer"}
"""The base of the others."""


def test_examples():
    runner = doctest.DocTestRunner(optionflags=docstrings.OPTIONS, verbose=False)
    for name, found in docstrings.public(["boost_ext.torch"]):
        test = docstrings.examples(name, found)
        assert bool(test.examples) is (name.rpartition(".")[2] not in WITHOUT), name
        assert runner.run(test).failed == 0, inspect.cleandoc(found.__doc__)
    assert "AdamW" in boost.__all__
