"""Extras and imports on a Python that MindSpore has no wheels for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
CONSTRAINTS = (ROOT / "tests" / "constraints.txt").read_text()
MS = ROOT / "python" / "boost_ext" / "ms" / "__init__.py"
DISTRIBUTIONS = {"sklearn": "scikit-learn", "pydantic_core": "pydantic", "typing_extensions": "pydantic"}
PEERS = {"torch", "ml_dtypes"}  # of boost-ext bench, where they are installed
IMPORTS = ("boost", "amp", "optim", "model", "callbacks", "checkpoint", "distributed", "ms")


def extra(name: str) -> list[Requirement]:
    (line,) = re.findall(rf"^{name} = \[(.*)\]$", PYPROJECT, re.MULTILINE)
    return [Requirement(text) for text in re.findall(r'"([^"]*)"', line)]


@pytest.mark.parametrize("python", ["3.10", "3.12", "3.13", "3.14"])
def test_the_extra_asks_for_mindspore_on_every_python(python: str) -> None:
    """pip then says that there is none, and installs nothing."""
    asked = {r.name: str(r.specifier) for r in extra("mindspore") if not r.marker or r.marker.evaluate(_on(python))}
    assert asked["mindspore"] == ">=2.10", "the day after a release no install may break"
    assert asked.get("numpy") == ("<2" if python in ("3.10", "3.12") else None), "what pip would try to build"


def test_tests_run_with_one_mindspore() -> None:
    (pinned,) = re.findall(r"^mindspore==(.*)$", CONSTRAINTS, re.MULTILINE)
    (asked,) = (requirement for requirement in extra("mindspore") if requirement.name == "mindspore")
    assert asked.specifier.contains(pinned)
    assert f'_TESTED = "{pinned.rpartition(".")[0]}"' in MS.read_text()


def _on(python: str) -> dict[str, str]:
    return {"python_version": python, "extra": "mindspore"}


def test_what_the_package_imports_is_asked_for() -> None:
    """The environment of the tests has more than `pip install boost_ext[train]` installs."""
    nodes = [n for p in ROOT.glob("python/boost_ext/**/*.py") for n in ast.walk(ast.parse(p.read_text()))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    packages = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"boost_ext"}
    asked = {r.name for name in ("dependencies", "mindspore", "report", "train") for r in extra(name)}
    assert {"numpy", "mindspore"} <= packages
    assert {DISTRIBUTIONS.get(package, package) for package in packages - PEERS} <= asked


def test_the_report_needs_no_mindspore() -> None:
    assert [requirement.name for requirement in extra("report")] == ["jinja2", "matplotlib"]


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        ((3, 12), "install it with: pip install 'boost_ext[mindspore]'"),
        ((3, 13), "MindSpore 2.10 needs Python 3.10 to 3.12, and this is Python 3.13"),
    ],
)
def test_imports_say_what_is_missing(version: tuple[int, int], advice: str) -> None:
    code = f"""
import importlib, sys
import boost_ext.requirements
sys.modules["mindspore"] = None
sys.version_info = {(*version, 0, "final", 0)}
for name in {IMPORTS}:
    try:
        importlib.import_module("boost_ext." + name)
    except ImportError as error:
        print(name, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(IMPORTS)
    for line in lines:
        assert "this needs mindspore, which could not be imported" in line
        assert line.endswith(advice)


def test_public_modules_load_at_first_use() -> None:
    code = """
import sys
import boost_ext
assert {"Model", "amp", "boost", "optim", "pca", "plan", "ops", "num_threads"} <= set(dir(boost_ext))
assert not {"boost_ext.pca", "boost_ext.plan", "pydantic", "mindspore"} & set(sys.modules)
sys.modules["mindspore"] = None
print(boost_ext.pca.load_matrix.__name__, boost_ext.plan.Plan.__name__)
try:
    boost_ext.optim
except ImportError as error:
    print(error)
try:
    boost_ext.optimizers
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded, missing, unknown = done.stdout.splitlines()
    assert loaded == "load_matrix Plan"
    assert missing.startswith("this needs mindspore, which could not be imported")
    assert unknown == "module 'boost_ext' has no attribute 'optimizers'"
