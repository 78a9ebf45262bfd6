"""What goes wrong between ranks ends in time, with an error that says what it was, and can be taken up again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.distributed.launch import launch, python_path

SCRIPT = Path(__file__).with_name("faulty.py")
# Seconds where a user has minutes, so that the tests are short; but what two busy cores need to compile.
SHORT = {"MS_CPU_COMM_OP_TIMEOUT": "12", "MS_NODE_TIMEOUT": "10"}


def test_a_killed_rank_ends_the_others_and_the_training_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    """Killed between a step and its save, when rank 0 has saved it: all go on from the step that both have."""
    run = launch(SCRIPT, 2, "graph", "kill", str(tmp_path), folder=tmp_path, timeout=120, env=SHORT)
    assert run.returncode not in (0, None), "msrun must end by itself, with an error"
    assert "Error code: -9" in run.logs[-1]
    run = launch(SCRIPT, 2, "graph", "resume", str(tmp_path), folder=tmp_path / "again", timeout=120)
    for log in run.require_success().logs[:2]:
        assert "resumed to the same bits" in log
        assert "load_rank_state: folder must hold a step that all ranks have, got" in log
        assert "with rank 0: [5], rank 1: []" in log


@pytest.mark.parametrize("how", ["graph", "off"])
def test_a_rank_that_hangs_is_told_of(how: str, tmp_path: Path) -> None:
    run = launch(SCRIPT, 2, how, "hang", str(tmp_path), folder=tmp_path, timeout=120, env=SHORT)
    assert run.returncode not in (0, None)
    assert (
        "BoostTrainOneStepCell: rank 0 of 2, after 3 steps: every other rank must answer within "
        "MS_CPU_COMM_OP_TIMEOUT = 12 s, got nothing from one: it ended, hangs, or runs other steps."
    ) in run.logs[0]


def test_a_rank_that_never_arrives_is_told_of() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    worker = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": "0", "MS_WORKER_NUM": "2"}
    scheduler = {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": port}
    code = "import mindspore as ms; ms.set_device('CPU'); from boost_ext.distributed import init_ranks; init_ranks(3)"
    environment = {**os.environ, **python_path(), **worker, **scheduler, "GLOG_v": "3"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=90)
    assert run.returncode == 1
    assert f"init_ranks: 2 ranks must meet at the scheduler 127.0.0.1:{port} within 3 s, got an error" in run.stderr


@pytest.mark.parametrize("timeout", [0, -5])
def test_the_time_out_must_be_positive(timeout: int) -> None:
    from boost_ext.distributed import init_ranks

    with pytest.raises(ValueError, match=f"^init_ranks: timeout must be >= 1, got {timeout}"):
        init_ranks(timeout)
    with pytest.raises(TypeError, match=r"^init_ranks: timeout must be an int, got float"):
        init_ranks(1.5)
