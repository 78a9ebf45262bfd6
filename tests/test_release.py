"""What the files of a release say of one another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import boost_ext
from boost_ext import _core

ROOT = Path(__file__).parents[1]
VERSION = r'^version = "([^"]+)"$'


def one(pattern: str, file: str) -> str:
    (found,) = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
    return found


def test_there_is_one_version() -> None:
    version = one(VERSION, "pyproject.toml")
    assert boost_ext.__version__ == version, "the native module is of another version: build it again"
    assert one(r"^version: (.*)$", "CITATION.cff") == version


def test_boost_ext_cuda_has_the_version_of_boost_ext() -> None:
    pattern = one(r"^regex = '(.*)'$", "packaging/cuda/pyproject.toml")
    assert one(pattern, "pyproject.toml") == boost_ext.__version__


def fake_install(folder: Path, ours: str, theirs: str) -> subprocess.CompletedProcess[str]:
    """Import boost_ext beside a boost-ext-cuda whose native module is the one that was built here."""
    for name, version in (("boost_ext", ours), ("boost_ext_cuda", theirs)):
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    package = folder / "boost_ext_cuda"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / Path(_core.__file__).name).symlink_to(Path(_core.__file__).resolve())
    code = """
import boost_ext
from boost_ext import _core, ops
import boost_ext._core
assert boost_ext._core is _core
print(_core.__name__, ops.global_norm([__import__("numpy").ones(4, "f4")]))
"""
    above = str(Path(boost_ext.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), above])}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=environment
    )


def test_boost_ext_cuda_is_used_where_it_is_installed(tmp_path: Path) -> None:
    done = fake_install(tmp_path, "0.2.0", "0.2.0")
    assert done.stdout == "boost_ext_cuda._core 2.0\n", done.stderr


def test_boost_ext_cuda_of_another_version_is_refused(tmp_path: Path) -> None:
    done = fake_install(tmp_path, "0.3.0", "0.2.0")
    assert "boost_ext 0.3.0 needs boost-ext-cuda of the same version, got 0.2.0; " in done.stderr
    assert done.stderr.endswith("install it with: pip install boost-ext-cuda==0.3.0\n")


def test_the_sdist_has_what_cmake_reads() -> None:
    excluded = one(r"^sdist\.exclude = \[(.*)\]$", "pyproject.toml")
    kept = {name.removeprefix("!/") for name in re.findall(r'"([^"]+)"', excluded) if name.startswith("!/")}
    text = (ROOT / "CMakeLists.txt").read_text()
    read = set(re.findall(r"(?:add_subdirectory\(|CONFIGURE_DEPENDS |CURRENT_SOURCE_DIR}/)([\w-]+)/", text))
    assert read - {"tests"} <= kept, "tests: of builds for tests"
    assert {"csrc", "kernels"} <= read
