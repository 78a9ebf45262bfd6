"""Every code block of every page runs, on its own page: see pages.py."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.distributed.launch import launch
from tests.docs import pages
from tests.docs.conftest import TIMEOUT

RANKS_BY = "msrun --worker_num 2 --local_worker_num 2 --join True"

NOT_RUN = {
    "make": "what CI itself calls",
    "pip install": "what make calls, for each environment of CI",
    ".venvs/dev/bin/python -m pytest": "the tests themselves",
    "cmake": "make test-native and test-nvcc configure and build",
    "source": "a toolkit that is not here",
    "boost-ext run -m": "tests/test_script_run.py does",
    "boost-ext run --compare": "as the first command, three times",
    "boost-ext run --level": "as the first command, which is at O0",
    RANKS_BY: "test_ranks starts the script so",
    "msrun --worker_num 2 --local_worker_num 2 python -m boost_ext run": "the first command, on two ranks",
    "python tests/mutants.py": "half an hour of tests",
    "python -m benchmarks.cuda": "it reads what the visit left",
    "benchmarks/cuda/visit.sh": "tests/cuda/test_cuda_visit.py runs it, with a stand-in for the GPU",
}
"""The commands that are not run, by their first words, and why."""

OF_THE_READER = {"script.py", "train.py"}
"""Nor are commands on these, where the page has no such file."""

WITH_CODE = [page for page in pages.PAGES if pages.blocks(page)]


def words_of(command: str) -> str:
    """Without the variables before it."""
    return re.sub(r"^(\w+=\S+ +)+", "", command)


RANKS = [page for page in WITH_CODE if any(words_of(c).startswith(RANKS_BY) for _, c in pages.commands(page))]


def reason(page: Path, command: str) -> str | None:
    """Why a command is not run."""
    words = words_of(command)
    if set(words.split()) & (OF_THE_READER - set(pages.titled(page))):
        return "of the reader"
    return next((start for start in NOT_RUN if f"{words} ".startswith(f"{start} ")), None)


def fail(page: Path, text: str, what: str = "") -> None:
    """With the page's line: the last one of the script in a traceback."""
    lines = re.findall(rf'File "[^"]*{pages.SCRIPT}", line (\d+)', text)
    last = text.strip().splitlines()[-1:] or ["no output"]
    pytest.fail(f"{pages.name(page)}:{lines[-1] if lines else '?'}: {what or last[0]}\n\n{text[-8000:]}", pytrace=False)


@pytest.mark.parametrize("page", WITH_CODE, ids=pages.name)
def test_a_page(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for title, code in pages.titled(page).items():
        (folder / title).write_text(code)
    code = pages.script(page)
    (folder / pages.SCRIPT).write_text(code)
    if pages.imports(code, "torch"):
        pytest.importorskip("torch")
    if pages.imports(code, "mindspore"):
        status, output = request.getfixturevalue("in_a_fork")(pages.run_here, str(folder))
        if status != 0:
            fail(page, output, "" if status else f"not done after {TIMEOUT} s")
    elif code:
        blocked = "import sys, runpy; sys.modules['mindspore'] = None; runpy.run_path('page.py', run_name='__main__')"
        command = [sys.executable, "-c", blocked]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            fail(page, done.stdout + done.stderr)
    for line, command in pages.commands(page):
        if reason(page, command):
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, f"{pages.name(page)}:{line}: {command}\n{done.stdout}{done.stderr}"


def environment(folder: Path) -> dict[str, str]:
    """With the command ``boost-ext`` of this interpreter, installed or not."""
    command = folder / "bin" / "boost-ext"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m boost_ext "$@"\n')
    command.chmod(0o755)
    path = [str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(path)}


@pytest.mark.parametrize("page", RANKS, ids=pages.name)
def test_ranks(page: Path, tmp_path: Path) -> None:
    """The script of the page on two ranks."""
    ((title, code),) = pages.titled(page).items()
    (tmp_path / title).write_text(code)
    launch(tmp_path / title, 2, folder=tmp_path, timeout=TIMEOUT).require_success()


@pytest.mark.parametrize("page", WITH_CODE, ids=pages.name)
def test_what_is_not_run_is_marked(page: Path) -> None:
    for block in pages.blocks(page):
        assert block.language in pages.RUN | pages.NOT_RUN, f"{pages.name(page)}:{block.line}: {block.language!r}"
        assert block.title is None or any(block.title in command for _, command in pages.commands(page)), (
            f"{pages.name(page)}:{block.line}: no command on the page runs {block.title}"
        )


def test_every_reason_is_needed() -> None:
    used = {reason(page, command) for page in WITH_CODE for _, command in pages.commands(page)}
    assert set(NOT_RUN) <= used


def test_a_failure_names_page_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nx = 1\n```\n\nText.\n\n- a list\n\n  ```python\n  print(x)\n  y\n  ```\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "inside").mkdir()
    with pytest.raises(pytest.fail.Exception, match=r"^page\.md:13: NameError: name 'y' is not defined"):
        test_a_page(page, tmp_path / "inside", None)
    page.write_text("!!! note\n\n    ```python\n    x\n    ```\n")
    with pytest.raises(ValueError, match=r"^page\.md:3: a fence that is indented"):
        pages.blocks(page)
