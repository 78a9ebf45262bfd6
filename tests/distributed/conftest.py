"""One launch for all that needs so many ranks: each of its processes imports MindSpore first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.distributed.launch import Launch, launch_jobs


@pytest.fixture(scope="session")
def launched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Launch]:
    """launched(ranks): what the jobs of the modules of which a test is run have done, one after another; launched when
    first asked for."""
    modules = {item.path.stem: item.module for item in request.session.items}
    known: dict[int, Launch] = {}

    def of(ranks: int) -> Launch:
        if ranks not in known:
            folder = tmp_path_factory.mktemp(f"ranks_{ranks}")
            jobs = [module.job(ranks, folder) for _, module in sorted(modules.items()) if hasattr(module, "job")]
            known[ranks] = launch_jobs([job for job in jobs if job], ranks, folder).require_success()
        return known[ranks]

    return of
