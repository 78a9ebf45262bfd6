"""The examples in the docstrings of the public names, run as a reader would."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

_NAMES = "ops adasum config convolutions cuda environment health local_steps pca pca_span plan run_log run_report"
CORE = ["boost_ext", *(f"boost_ext.{name}" for name in _NAMES.split())]
"""The public modules that need no MindSpore."""

OPTIONS = doctest.ELLIPSIS | doctest.REPORT_NDIFF


def public(modules: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The public classes and functions of this package in some modules, once each: ``module.name`` and the object."""
    seen: set[int] = set()
    for module in map(importlib.import_module, modules):
        for name in module.__all__:
            found = getattr(module, name)
            ours = str(getattr(found, "__module__", "")).split(".")[0] == "boost_ext"
            if ours and id(found) not in seen and (inspect.isclass(found) or inspect.isroutine(found)):
                seen.add(id(found))
                yield f"{module.__name__}.{name}", found


def examples(name: str, found: Any) -> doctest.DocTest:
    docstring = inspect.cleandoc(found.__doc__ or "")
    return doctest.DocTestParser().get_doctest(docstring, {"__name__": "__main__"}, name, name, 0)


def run(log: str, modules: Sequence[str], without: Sequence[str]) -> None:
    """Each name's example in an empty folder, all in this process; prints what went wrong into `log`, and exits.

    Args:
        without: names that must have no example.
    """
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    environment, wrong = dict(os.environ), 0
    for name, found in public(modules):
        test = examples(name, found)
        if bool(test.examples) is (name in without):
            print(f"{name}: {'there is' if test.examples else 'no'} example in its docstring")
            wrong += 1
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            wrong += runner.run(test).failed
            os.chdir("/")
        os.environ.clear()
        os.environ.update(environment)
    sys.stdout.flush()
    sys.exit(wrong > 0)
