"""The cases of a benchmark, measured here or in a new process. That finds modules by name, but not ``__main__``."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import boost_ext
from boost_ext.bench import harness
from boost_ext.bench.bandwidth import Bandwidth
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Row


def parts(name: str) -> Sequence[Callable[[bool], Iterator[Case]]]:
    module = import_module(f"{__package__}.bench_{name}")
    return getattr(module, "PROCESSES", None) or (module.cases,)


@cache
def bandwidth(threads: int, quick: bool) -> Bandwidth:
    return Bandwidth(threads, 1_000_000 if quick else 32_000_000)


def rows_of(name: str, part: int, threads: int, quick: bool) -> tuple[list[Row], float]:
    """The rows of a part, and the largest memory of this process so far, in GiB."""
    boost_ext.set_num_threads(threads)
    if torch := torch_or_none():
        torch.set_num_threads(threads)
    beside = bandwidth(threads, quick)
    rows: list[Row] = []
    for case in parts(name)[part](quick):
        if quick:
            peers = tuple(replace(peer, goal=None) for peer in case.peers)
            case = replace(case, seconds=0, bandwidth_goal=None, peers=peers)
        rows += harness.run(case, beside)
        del case  # with its arrays, before those of the next one are made
        gc.collect()  # a Cell refers to itself
    return rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def rows_apart(*call: Any) -> tuple[list[Row], float]:
    """:func:`rows_of`, in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(rows_of, *call).result()
