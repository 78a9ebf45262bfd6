"""How MindSpore's msrun is started for processes of this machine. Imports without MindSpore."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

__all__ = ["command", "environment"]


def command(ranks: int, logs: Path, script: Path, *arguments: str, arrival: int | None = None) -> list[str]:
    """What runs `script` on so many processes, and waits for them.

    Args:
        logs: folder for a log of each process.
        arrival: seconds until all processes must have met. Default: None, MindSpore's own limit.
    """
    parts = [sys.executable, "-m", "mindspore.parallel.cluster.run", "--worker_num", str(ranks)]
    parts += ["--local_worker_num", str(ranks), "--master_addr", "127.0.0.1", "--master_port", str(_free_port())]
    parts += [] if arrival is None else ["--cluster_time_out", str(arrival)]
    return [*parts, "--log_dir", str(logs), "--join", "True", str(script), *arguments]


def environment(threads: int) -> dict[str, str]:
    """That of such processes, each with so many threads: msrun starts plain "python", which must be this one."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PATH": path}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
