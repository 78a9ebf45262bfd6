"""What all tests share. MindSpore is not imported here: the tests of the core run without it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import boost_ext
import device
from boost_ext import _core, convolutions, environment, machine

# The same examples on every run and no time limit: a test that fails only now and then tells nobody anything.
settings.register_profile(
    "boost_ext",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("boost_ext")

environment.make_fast()  # before MindSpore is imported; the tests that train would be slow

gc.disable()  # until all is collected

LONG = ("test_adasum_ranks", "test_faults", "test_example_scripts", "test_pages", "test_training", "test_run_script")
"""Files of minutes, which begin: none of them is what all workers but one wait for at the end."""

ISAS: list[str] = boost_ext.build_info()["cpu_isas"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=device.DEVICES, default="cpu", help="where the arrays of tests/ops lie")


def pytest_configure(config: pytest.Config) -> None:
    device.install(config.option.device)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG)  # a stable sort
    where = config.option.device
    if where == "cpu":
        return
    # The instruction sets of the host are one and the same device.
    items[:] = [
        i for i in items if not (call := getattr(i, "callspec", None)) or call.params.get("isa", ISAS[-1]) == ISAS[-1]
    ]
    for item in items:
        if reason := device.left_out(where, item.path.stem, getattr(item, "originalname", item.name)):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files in their order, which begins with the ranks: xdist begins with those of many tests, and ends with the slow
    ones. Files that share a launch of ranks share a worker."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "tests/distributed" if file.startswith("tests/distributed/") and "test_faults" not in file else file

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """MindSpore collects garbage before each compilation: not through all tests and modules, which takes a second."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """One failure must not be that of all who come after: pytest-xdist starts another worker."""
    if "PYTEST_XDIST_WORKER" in os.environ and device.is_lost():
        os._exit(1)


@pytest.fixture(scope="module", params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module on each instruction set, with more threads than blocks divide evenly among."""
    before, threads = boost_ext.build_info()["isa"], boost_ext.num_threads()
    _core.set_isa(request.param)
    boost_ext.set_num_threads(3)
    yield request.param
    _core.set_isa(before)
    boost_ext.set_num_threads(threads)


@pytest.fixture
def medium_precision() -> Iterator[None]:
    """Factors of products may be rounded to bfloat16."""
    yield from _in_precision("medium")


@pytest.fixture(params=["highest", "medium"])
def precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test with products of each precision."""
    yield from _in_precision(request.param)


def _in_precision(name: str) -> Iterator[None]:
    boost_ext.set_float32_matmul_precision(name)
    yield
    boost_ext.set_float32_matmul_precision("highest")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """boost_ext.set_num_threads for one test."""
    before = boost_ext.num_threads()
    yield boost_ext.set_num_threads
    boost_ext.set_num_threads(before)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """To the modules convolutions and environment: a CPU with or without AVX-512, its cores, and what is set for oneDNN
    and for MindSpore's threads."""

    def pretend(*, avx512: bool, onednn: str = "", dnnl: str = "", cores: float = 16, blocking: str = "") -> None:
        isas = ["baseline", "avx2", *(["avx512"] if avx512 else [])]
        monkeypatch.setattr(convolutions, "build_info", lambda: {"cpu_isas": isas})
        # Empty, which is as good as not set, and not deleted: so pytest also undoes what the test itself sets.
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", onednn)
        monkeypatch.setenv("DNNL_MAX_CPU_ISA", dnnl)
        monkeypatch.setattr(machine, "usable_cores", lambda: cores)
        monkeypatch.setenv(environment.DISPATCH, blocking)

    return pretend
