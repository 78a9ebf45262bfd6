"""The packed calls of MindSpore's cells on damaged arrays: an error that names the op, and nothing is read or written
beside the arrays. In a process of its own, since that is what a mistake would end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from boost_ext import _core


def run(*arguments: str) -> str:
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"exit status {result.returncode}: {result.stderr[-600:]}"
    return result.stdout


@pytest.mark.parametrize(
    "call",
    [
        "sgd",
        "momentum",
        "adam",
        "adagrad",
        "adafactor",
        "muon",
        "apollo",
        "galore",
        "lars",
        "dense",
        "convolution",
        "embedding",
        "inverse",
        "precondition",
    ],
)
def test_damaged_calls_are_refused(call):
    rounds = 1000
    assert rounds // 2 < int(run(str(Path(__file__).with_name("packed_calls.py")), call, str(rounds))) <= rounds


RULE = """
import numpy as np
from boost_ext import _core

one = [np.ones(1, np.float32)] * 2
try:
    layout = np.array([RULE, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0], np.int32)
    _core.call("optimizer_step", layout, np.ones(1), np.zeros(1, bool), one)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("rule", [-1, len(_core.optimizer_rules()), 2**31 - 1])
def test_a_rule_that_does_not_exist(rule):
    last = len(_core.optimizer_rules()) - 1
    text = f"optimizer_step: layout must hold a number of rule from 0 to {last}, got {rule}\n"
    assert run("-c", RULE.replace("RULE", str(rule))) == text
