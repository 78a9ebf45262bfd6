"""Try boost_ext as it is installed beside this Python: README's first block of ops, the command, some tests of the ops.

    python tools/try_wheel.py [--first] [--cuda]

``--first``: no tests, so that nothing but the wheel has to be installed. ``--cuda``: boost-ext-cuda must be in use.
The children get a PATH with this Python's folder only, so that nothing can be compiled.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("test_exports.py", "ops/test_accumulate.py", "ops/test_adasum.py", "ops/test_global_norm.py")
INSTALLED = """
import sys, boost_ext
assert boost_ext.__file__.startswith(sys.prefix), f"not the installed package: {boost_ext.__file__}"
build = boost_ext.build_info()
print(f"boost_ext {build['version']} on Python {sys.version.split()[0]}, {build['compiler']}, {build['isa']}")
"""
CUDA = """
import boost_ext
from boost_ext import _core
assert boost_ext.build_info()["cuda"] and "boost_ext_cuda" in _core.__file__, _core.__file__
"""


def first_block() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(block for block in blocks if "from boost_ext import ops" in block and "mindspore" not in block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--cuda", action="store_true")
    options = parser.parse_args()
    scripts = Path(sys.executable).parent
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CC", "CXX")}
    environment |= {"PATH": str(scripts), "PYTHONDONTWRITEBYTECODE": "1"}
    calls = [[sys.executable, "-c", code] for code in (INSTALLED, first_block(), *([CUDA] if options.cuda else []))]
    calls.append([str(scripts / "boost-ext"), "info"])
    if not options.first:
        tests = [str(ROOT / "tests" / name) for name in TESTS]
        calls.append([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests])
    with tempfile.TemporaryDirectory() as folder:  # not the source tree, whose package has no native module
        for call in calls:
            subprocess.run(call, cwd=folder, env=environment, check=True, timeout=600)


if __name__ == "__main__":
    main()
