"""README's blocks and the examples, checked by pyright in its strict mode: ``python tests/typed.py [--python PYTHON]``.

MindSpore ships no types. Stubs in which all of it is ``Any`` stand in for it and for other libraries, so that what is
checked is ours, and the same whatever is installed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANY = "from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n"
OPERATORS = [f"__{r}{name}__" for name in ("add", "sub", "mul", "truediv", "matmul", "pow") for r in ("", "r")]
OPERATORS += [f"__{name}__" for name in ("lt", "le", "gt", "ge", "getitem")]
# What annotations name must be classes.
CLASSES = "\n".join(
    (
        ANY,
        "class Tensor(Any):",
        "    def __neg__(self) -> Any: ...",
        *(f"    def {name}(self, other: Any) -> Any: ..." for name in OPERATORS),
        "class Parameter(Tensor): ...",
    )
)


def sources() -> Iterator[tuple[str, str]]:
    """Names of modules and their texts; the blocks of a page follow one another."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    yield "readme", "\n".join(blocks)
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.stem, path.read_text(encoding="utf-8")


def foreign_modules(texts: list[str]) -> set[str]:
    """All that is imported of other libraries than NumPy, there, and of MindSpore in the package."""
    texts = [*texts, *(path.read_text(encoding="utf-8") for path in (ROOT / "python").rglob("*.py"))]
    pattern = re.compile(r"^\s*(?:from|import) ((?:mindspore|torch|sklearn|matplotlib)\b[\w.]*)", re.MULTILINE)
    return {"mindspore", *(name for text in texts for name in pattern.findall(text))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has boost_ext")
    python = parser.parse_args().python
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = dict(sources())
        for module, text in texts.items():
            (folder / f"{module}.py").write_text(text, encoding="utf-8")
        for module in foreign_modules(list(texts.values())):
            package = folder / "stubs" / Path(*module.split("."))
            for level in (package, *package.parents):
                if level == folder / "stubs":
                    break
                level.mkdir(parents=True, exist_ok=True)
                (level / "__init__.pyi").write_text(CLASSES if level.name == "mindspore" else ANY)
        settings = {"include": ["*.py"], "typeCheckingMode": "strict", "stubPath": "stubs"}
        settings["reportMissingModuleSource"] = "none"
        (folder / "pyrightconfig.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "pyright", "-p", name, "--pythonpath", python]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout.replace(f"{name}/", ""), done.stderr, sep="", end="")
        return done.returncode


if __name__ == "__main__":
    sys.exit(main())
