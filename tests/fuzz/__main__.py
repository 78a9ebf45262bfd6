"""``python -m tests.fuzz [--seconds N] [--seed N] [TARGET …]``: looks for calls and files that end in a wrong way.

A target is one of those that it prints, `ops` or `readers`; default: all, and `torch` where PyTorch is installed. Each
has a process of its own, and so many seconds. An input that breaks a reader is kept in the corpus, which the tests
read; others are printed. The seed is another one each time. With the seed that was printed the same inputs come
again.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from boost_ext import environment

ARRAYS, PACKED, LAYERS, CELLS, TORCH, ROUND = "arrays", "packed", "layers", "cells", "torch", 200


def rounds(
    strategy: st.SearchStrategy[Any], check: Callable[[Any], bool], seconds: float, seed: int, size: int = ROUND
) -> None:
    """Print how many inputs were accepted, of all that were tried."""
    end, tried = time.monotonic() + seconds, {True: 0, False: 0}

    @settings(
        max_examples=size,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def some(value: Any) -> None:
        tried[check(value)] += 1

    while time.monotonic() < end:
        seeded(seed)(some)()
        seed += 1
    print(f"{sum(tried.values())} inputs, {tried[True]} of them accepted")


def printable(
    strategy: st.SearchStrategy[Any],
    check: Callable[[Any], bool],
    seconds: float,
    seed: int,
    folder: Path,
    size: int = ROUND,
) -> None:
    """`rounds` of inputs whose text the parent prints if one ends the process."""

    def noted(value: Any) -> bool:
        (folder / "input").write_text(f"{value}\n")
        return check(value)

    rounds(strategy, noted, seconds, seed, size)


def arrays(seconds: float, seed: int, folder: Path) -> None:
    from tests.fuzz.array_calls import Call, calls

    printable(calls(), Call.check, seconds, seed, folder)


def packed(seconds: float, seed: int, _: Path) -> None:
    program = Path(__file__).parents[1] / "ops" / "packed_calls.py"
    end, tried, refused = time.monotonic() + seconds, 0, 0
    names = subprocess.run([sys.executable, program, "--names"], capture_output=True, text=True, check=True).stdout
    while time.monotonic() < end:
        for name in names.split():
            command = [sys.executable, program, name, "1000", str(seed)]
            refused += int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
            tried += 1000
        seed += 1
    print(f"{tried} inputs, {tried - refused} of them accepted")


def trainings(seconds: float, seed: int, folder: Path) -> None:
    from tests.fuzz.torch_recipes import Recipe, recipes

    warnings.simplefilter("ignore")  # schedulers of PyTorch that are called before a step
    printable(recipes(), Recipe.check, seconds, seed, folder)


def layers(seconds: float, seed: int, folder: Path) -> None:
    environment.make_fast()
    import mindspore as ms
    from tests.fuzz.layer_recipes import Recipe, recipes

    ms.set_context(mode=ms.GRAPH_MODE)
    os.chdir(folder)  # MindSpore writes the graphs of failed compilations
    printable(recipes(), Recipe.check, seconds, seed, folder, size=20)


def cells(seconds: float, seed: int, folder: Path) -> None:
    environment.make_fast()
    from tests.fuzz.cell_checks import check
    from tests.fuzz.cell_recipes import recipes

    printable(recipes(compile=("off",) * 18 + ("network", "step")), check, seconds, seed, folder, size=5)


def reader(name: str, seconds: float, seed: int, folder: Path) -> None:
    from tests.fuzz.mutations import mutated
    from tests.fuzz.readers import CORPUS, TARGETS, attempt, corpus

    last = b""

    def check(content: bytes) -> bool:
        nonlocal last
        last = content
        (folder / "input").write_bytes(content)  # for the parent, if this one ends the process
        return attempt(TARGETS[name], content, folder)

    try:
        rounds(mutated(corpus(name, folder)), check, seconds, seed)
    except BaseException:
        keep(CORPUS / name, last)
        raise


def keep(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(content).hexdigest()[:16]
    path.write_bytes(content)
    print(f"kept as {path}")


def spelled_out(targets: list[str]) -> list[str]:
    from tests.fuzz.readers import TARGETS

    groups = {"ops": [ARRAYS, PACKED], "readers": list(TARGETS), LAYERS: [LAYERS], CELLS: [CELLS], TORCH: [TORCH]}
    return [name for target in targets or groups for name in groups.get(target, [target])]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--seconds", type=float, default=10, help="for each target")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        faulthandler.enable()
        (name,) = options.targets
        alone = {ARRAYS: arrays, PACKED: packed, LAYERS: layers, CELLS: cells, TORCH: trainings}.get(name)
        if alone:
            alone(options.seconds, options.seed, options.folder)
        else:
            reader(name, options.seconds, options.seed, options.folder)
        return 0
    failed = []
    for name in spelled_out(options.targets):
        if name == TORCH and not importlib.util.find_spec("torch"):
            print("torch: left out, PyTorch is not installed")
            continue
        seed = secrets.randbits(32) if options.seed is None else options.seed
        print(f"{name}, seed {seed}: ", end="", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.fuzz", name, f"--seconds={options.seconds}", f"--seed={seed}"]
            code = subprocess.run([*command, f"--in={folder}"]).returncode
            if code:
                failed.append(name)
            last = Path(folder) / "input"
            if code < 0 and name in (ARRAYS, LAYERS, CELLS, TORCH):
                print(f"signal {-code} in {last.read_text()}")
            elif code < 0 and last.exists():
                from tests.fuzz.readers import CORPUS

                keep(CORPUS / name, last.read_bytes())
    if failed:
        print(f"failed: {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
