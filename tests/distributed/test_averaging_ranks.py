"""Trainable weight averaging on two ranks: one builds the basis, both step by the mean of their gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.distributed.launch import launch
from tests.ms.test_weight_averaging import checkpoints


def test_two_ranks(tmp_path: Path) -> None:
    for i, values in enumerate(checkpoints()):
        np.savez(tmp_path / f"net-{i}.npz", **values)
    script = Path(__file__).with_name("averaging_ranks.py")
    done = launch(script, 2, str(tmp_path), folder=tmp_path / "run").require_success()
    text = "".join(done.logs)
    assert "rank 0 is right" in text
    assert "rank 1 is right" in text
    assert [p.name for p in tmp_path.glob("twa*")] == ["twa.npy"]
