"""What the native module shows to other modules of the process."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from boost_ext import _core


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_it_exports_its_own_functions_only() -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", _core.__file__], capture_output=True, text=True, check=True, timeout=60
    )
    exported = {line.split()[2] for line in done.stdout.splitlines()}
    assert {name for name in exported if not name.startswith("boost_ext_")} == {"PyInit__core"}
    assert "boost_ext_accumulate" in exported, "what MindSpore's graphs call"
