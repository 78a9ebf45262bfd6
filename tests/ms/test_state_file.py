"""The file of a training state: its checksum, and what MindSpore makes of it."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from tests.damage import damaged
from tests.ms.networks import Mlp, mlp_batch

from boost_ext import boost
from boost_ext.checkpoint import load_training_state, save_training_state


def trained() -> nn.Cell:
    """A cell after a step."""
    net = Mlp()
    with_loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    cell = boost.BoostTrainOneStepCell(with_loss, nn.Adam(net.trainable_params(), 0.01), compile="off")
    step(cell)
    return cell


def step(cell: nn.Cell) -> None:
    cell(*mlp_batch(0, 8))


def state(cell: nn.Cell) -> dict[str, np.ndarray]:
    return {name: value.asnumpy() for name, value in cell.state_dict().items()}


def test_any_damage_of_a_state_is_found_before_it_is_parsed(tmp_path: Path, monkeypatch) -> None:
    """MindSpore's reader may end the process: a test that reached it would not fail, but die."""
    cell, path = trained(), tmp_path / "state.ckpt"
    save_training_state(cell, path)
    whole = path.read_bytes()
    step(cell)
    was = state(cell)
    with monkeypatch.context() as patched:
        patched.setattr(ms, "load_checkpoint", lambda *_: pytest.fail("it was parsed"))
        for content in [*damaged(whole, 1000), whole + b"\0", whole + whole, b"\0" * len(whole)]:
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"^load_training_state: path must .*state\.ckpt'.* damaged"):
                load_training_state(cell, path)
    assert {k: v.tobytes() for k, v in state(cell).items()} == {k: v.tobytes() for k, v in was.items()}
    path.write_bytes(whole)
    load_training_state(cell, path)
    assert any(v.tobytes() != was[k].tobytes() for k, v in state(cell).items())


def test_mindspore_reads_a_state_and_one_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    cell = trained()
    path, entries = tmp_path / "state.ckpt", cell.state_dict()
    save_training_state(cell, path)
    for name, value in ms.load_checkpoint(str(path)).items():
        assert value.asnumpy().tobytes() == entries[name].asnumpy().tobytes()
    ms.save_checkpoint([{"name": n, "data": v} for n, v in entries.items()], str(tmp_path / "old.ckpt"))
    with pytest.raises(ValueError, match=r"must end in .* loads a file of an earlier version, unchecked"):
        load_training_state(cell, tmp_path / "old.ckpt")
    cell.load_state_dict(ms.load_checkpoint(str(tmp_path / "old.ckpt")))


def test_a_save_that_fails_half_way_leaves_the_old_file_alone(tmp_path: Path, monkeypatch) -> None:
    cell, path = trained(), tmp_path / "state.ckpt"
    save_training_state(cell, path)
    old = path.read_bytes()

    def stops(entries: object, name: str) -> None:
        Path(name).with_suffix(".tmp").write_bytes(old[:100])
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ms, "save_checkpoint", stops)
        with pytest.raises(OSError, match="No space left"):
            save_training_state(cell, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.ckpt"]
    assert path.read_bytes() == old
    step(cell)
    save_training_state(cell, path)
    assert path.read_bytes() != old
    load_training_state(cell, path)
