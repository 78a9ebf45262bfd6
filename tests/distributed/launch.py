"""Start the ranks of a test with msrun, never wait longer than said, and hand back what each rank said.

A launch costs about ten seconds, so a script runs many cases and is launched once: see conftest.py.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

import boost_ext
from boost_ext.demo import msrun

MARKER = "BOOST_EXT_LAUNCH"
ROOT = Path(__file__).parents[2]


def python_path() -> dict[str, str]:
    """Where the tests and the package are, for processes that start elsewhere."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(boost_ext.__file__).parents[1])])}


@dataclass(frozen=True)
class Launch:
    """What is left of a run: how msrun ended (None: it was stopped at the time-out), how long it took, the logs and
    the folder."""

    returncode: int | None
    seconds: float
    logs: tuple[str, ...]
    folder: Path

    def require_success(self) -> Launch:
        assert self.returncode == 0, f"msrun: {self.returncode}\n" + "\n".join(log[-4000:] for log in self.logs)
        return self


def launch(
    script: Path, ranks: int, *arguments: str, folder: Path, timeout: float = 300.0, env: dict[str, str] | None = None
) -> Launch:
    """Run `script` with `arguments` on `ranks` processes of this machine; logs go into `folder`.

    What is left of its processes at the end is killed. They are found by a mark in their environment: each worker of
    msrun is a session of its own, and may outlive it.
    """
    logs = folder / "logs"
    command = msrun.command(ranks, logs, script, *arguments)
    environment = {
        **msrun.environment(threads=1),
        "GLOG_v": "3",
        **python_path(),
        MARKER: secrets.token_hex(8),
        **(env or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with open(folder / "msrun.log", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=folder)
        try:
            returncode: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            returncode = None
        finally:
            _kill_marked(environment[MARKER])
            process.wait()
    seconds = time.monotonic() - start
    texts = [path.read_text(errors="replace") for path in sorted(logs.glob("worker_*.log"))]
    return Launch(returncode, seconds, (*texts, (folder / "msrun.log").read_text(errors="replace")), folder)


def launch_jobs(jobs: list[list[str]], ranks: int, folder: Path) -> Launch:
    """Run the main functions of some scripts of this folder, one after another; a job is a script and its arguments."""
    return launch(Path(__file__).with_name("ranks.py"), ranks, json.dumps(jobs), folder=folder, timeout=600)


def _kill_marked(marker: str) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARKER) == marker:
                process.kill()
