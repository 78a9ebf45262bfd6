"""Processes with MindSpore, of which each is as if it had just been imported."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 120


@pytest.fixture(scope="session")
def forkserver() -> ForkServerContext:
    """Its children are forked from a process that has imported MindSpore, and has run nothing of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mindspore", "mindspore.dataset", "boost_ext.boost", "boost_ext.amp"])
    return context


@pytest.fixture
def in_a_fork(forkserver: ForkServerContext, tmp_path: Path) -> Callable[..., tuple[int | None, str]]:
    """Run a function in such a process, on the path of a file for its output and the arguments: exit status, output."""

    def run(function: Callable[..., None], *arguments: Any) -> tuple[int | None, str]:
        log = tmp_path / "log"
        log.touch()
        process = forkserver.Process(target=function, args=(str(log), *arguments))
        process.start()
        process.join(TIMEOUT)
        if process.exitcode is None:
            process.kill()
            process.join()
            return None, log.read_text(errors="replace")
        return process.exitcode, log.read_text(errors="replace")

    return run
