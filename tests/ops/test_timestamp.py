"""The native clock. Its use, inside graphs, is tested in tests/ms/test_native.py."""

from __future__ import annotations

import time

import numpy as np
import pytest

from boost_ext import _core


def stamp(stamps: np.ndarray, slot: int) -> None:
    _core.call("timestamp", stamps, np.array([slot], np.int32))


def test_it_is_pythons_clock():
    stamps = np.full(3, -1.0)
    before = time.perf_counter()
    stamp(stamps, 1)
    after = time.perf_counter()
    assert before <= stamps[1] <= after
    assert stamps[[0, 2]].tolist() == [-1, -1]


def test_it_never_runs_backwards():
    stamps = np.zeros(1000)
    for slot in range(len(stamps)):
        stamp(stamps, slot)
    assert (np.diff(stamps) >= 0).all()
    assert stamps[-1] > stamps[0]


@pytest.mark.parametrize("slot", [-1, 3, 2**31 - 1])
def test_the_slot_must_be_there(slot):
    stamps = np.zeros(3)
    with pytest.raises(ValueError, match=f"^timestamp: slot must be from 0 to 2, got {slot}$"):
        stamp(stamps, slot)
    assert not stamps.any()


def test_stamps_are_float64():
    with pytest.raises(TypeError, match=r"^timestamp: stamps must be float64, got float32$"):
        stamp(np.zeros(3, np.float32), 0)


def test_stamps_are_written():
    stamps = np.zeros(3)
    stamps.flags.writeable = False
    with pytest.raises(ValueError, match=r"^timestamp: stamps must be writable, got a read-only array$"):
        stamp(stamps, 0)
