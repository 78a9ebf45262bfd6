"""Whether the tests notice bugs: applies the mutants of docs/dev/mutants.toml to a copy of the tree, one at a time.

    python tests/mutants.py [ID...] [--all-tests] [--unchanged]

docs/dev/mutants.md says what this is for, and holds the results.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tomllib
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "docs" / "dev" / "mutants.toml"
TIMEOUT = 600  # seconds for the tests of a mutant
EMULATORS = ("-DBOOST_EXT_CUDA_EMULATOR=ON", "-DBOOST_EXT_ASCEND_EMULATOR=ON")


def build_of(mutant: dict[str, Any]) -> str:
    """Which library a mutant is tested with: the one that is there, or one that is built of the copy."""
    if mutant["file"].endswith(".py"):
        return ""
    return "emulated" if mutant["file"].startswith("kernels/") else "cpu"


def output_of(*command: Any) -> str:
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, check=True, text=True).stdout


def copy_tree(tree: Path) -> None:
    """What git knows or would add, as it is now, and the library that this Python imports."""
    for name in output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    library = Path(str(importlib.util.find_spec("boost_ext._core").origin))
    shutil.copy2(library, tree / "python" / "boost_ext" / library.name)


def build(tree: Path, kind: str) -> None:
    """Build the library of the copy, for the baseline instruction set."""
    folder, pybind11 = tree / "build" / kind, output_of(sys.executable, "-m", "pybind11", "--cmakedir").strip()
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11}", "-DBOOST_EXT_BASELINE_ONLY=ON"]
    options += ["-DBOOST_EXT_UNITY=OFF"]  # one file changes
    options += EMULATORS if kind == "emulated" else ()
    options += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    output_of("cmake", "-S", tree, "-B", folder, "-G", "Ninja", *options)
    output_of("cmake", "--build", folder, "--target", "_core")
    (library,) = folder.glob("_core*.so")
    shutil.copy2(library, tree / "python" / "boost_ext" / library.name)


def test(tree: Path, tests: list[str], timeout: float) -> tuple[str, str, float]:
    """What became of the tests, the first one that failed, and the seconds."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not exhaustive", *tests]
    began, log = time.monotonic(), tree / "pytest.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # the fixtures end the ranks that they have started
            time.sleep(10)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "timeout", "", time.monotonic() - began
    said = log.read_text(errors="replace")
    first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    by = first[1] if first else ""
    if code == 0:
        return "lived", "", time.monotonic() - began
    if code == 1 or code < 0:
        return "died", by or f"signal {-code}", time.monotonic() - began
    return "error", f"pytest {code}: {said.strip()[-500:]}", time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help="of mutants; all if there is none")
    parser.add_argument("--all-tests", action="store_true", help="run all tests, not only those in the list")
    parser.add_argument("--unchanged", action="store_true", help="apply nothing: the tests must pass")
    options = parser.parse_args()
    mutants = {m["id"]: m for m in tomllib.loads(MUTANTS.read_text())["mutant"]}
    if unknown := sorted(set(options.ids) - set(mutants)):
        parser.error(f"no mutant is called {', '.join(unknown)}")
    chosen = sorted(
        (mutants[i] for i in options.ids or mutants), key=lambda m: ("", "cpu", "emulated").index(build_of(m))
    )
    for m in chosen:
        if (count := (ROOT / m["file"]).read_text().count(m["find"])) != 1:
            parser.error(f"{m['id']}: find must occur once in {m['file']}, got {count} times")
    expected = {"lived"} if options.unchanged else {"died", "timeout"}
    console, table, good = Console(soft_wrap=True), Table("id", "file", "result", "by", "seconds"), True
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy_tree(tree := Path(place))
        for m in chosen:
            path, kind = tree / m["file"], build_of(m)
            every = ["tests/ops", "tests/cuda", "tests/ascend", "--device=cuda"] if kind == "emulated" else ["tests"]
            text = path.read_text()
            path.write_text(text if options.unchanged else text.replace(m["find"], m["replace"]))
            try:
                if kind:
                    build(tree, kind)
                tests, timeout = (every, 10 * TIMEOUT) if options.all_tests else (m["tests"], TIMEOUT)
                result, by, seconds = test(tree, tests, timeout)
            except subprocess.CalledProcessError as error:
                result, by, seconds = "error", f"{error}\n{(error.stdout + error.stderr)[-2000:]}", 0.0
            path.write_text(text)
            good = good and result in expected
            row = (m["id"], m["file"], result, by, f"{seconds:.0f}")
            console.print("  ".join(row), markup=False, highlight=False)
            table.add_row(*row)
    console.print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
