"""The code on the project's pages, and how a reader would run it.

- A fence ``python`` is run. All of a page are one script, pasted from top to bottom, in an empty folder.
- A fence ``python title="train.py"`` is a file, which a command on the page runs; a second one continues it.
- A fence ``sh`` holds commands. Each is run after the script, in its folder, or test_pages.py says why not.
- All other fences (``text``, ``diff``, ``c++`` …) are not run.
"""

from __future__ import annotations

import ast
import os
import runpy
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPT = "page.py"
RUN, NOT_RUN = {"python", "sh"}, {"text", "diff", "c++", "json", "toml", "yaml", "html", "bibtex"}


@dataclass(frozen=True)
class Block:
    """A fence: the line of the page that its code begins on, from 1, and ``title="…"`` of its info string."""

    line: int
    language: str
    title: str | None
    code: str


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    found = []
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "code_block" and "```" in token.content:  # in a tab or a note of mkdocs
            raise ValueError(f"{name(page)}:{token.map[0] + 1}: a fence that is indented by four spaces is not found")
        if token.type == "fence":
            language, *options = shlex.split(token.info) or [""]
            title = dict(option.partition("=")[::2] for option in options).get("title")
            found.append(Block(token.map[0] + 2, language, title, token.content))
    return found


def script(page: Path) -> str:
    """The page's script. Each line has the number that it has on the page."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and block.title is None:
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def titled(page: Path) -> dict[str, str]:
    """The files of the page: name to content. A fence with the title of an earlier one continues that file."""
    files: dict[str, str] = {}
    for block in blocks(page):
        if block.title is not None:
            files[block.title] = files.get(block.title, "") + block.code
    return files


def commands(page: Path) -> list[tuple[int, str]]:
    """The lines of the page's shell blocks that are not comments, each with its number."""
    found = []
    for block in blocks(page):
        if block.language == "sh":
            lines = enumerate(block.code.splitlines(), block.line)
            found += [(number, line) for number, line in lines if shlex.split(line, comments=True)]
    return found


def imports(code: str, framework: str) -> bool:
    """Whether it imports MindSpore or PyTorch itself, as all code with a network does."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] == framework for a in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == framework:
            return True
    return False


def run_here(log: str, folder: str) -> None:
    """In a process of its own: what ``python page.py`` does in `folder`, with all output in `log`."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.argv = [SCRIPT]
    runpy.run_path(SCRIPT, run_name="__main__")
