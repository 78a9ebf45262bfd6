"""MindSpore checkpoints, read into NumPy."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from tests.damage import damaged, is_refused

from boost_ext.ms.core.checkpoint import read_checkpoint

FLOATS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def save(path: Path, **entries: Tensor) -> bytes:
    ms.save_checkpoint([{"name": name, "data": value} for name, value in entries.items()], str(path))
    path.chmod(0o644)
    return path.read_bytes()


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16, ms.float32, ms.float64, ms.int8, ms.int64, ms.bool_])
def test_every_dtype_is_what_mindspore_reads(tmp_path: Path, dtype) -> None:
    path = tmp_path / "a.ckpt"
    save(path, w=Tensor(FLOATS).astype(dtype), scalar=Tensor(3).astype(dtype), one=Tensor([2]).astype(dtype))
    for name, expected in ms.load_checkpoint(str(path)).items():
        got = read_checkpoint(path)[name]
        is_float = dtype in (ms.float16, ms.bfloat16, ms.float32, ms.float64)
        want = expected.astype(ms.float32).asnumpy() if is_float else expected.asnumpy()
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)


def test_what_is_no_array_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint([{"name": "w", "data": Tensor(FLOATS)}], str(path), append_dict={"epoch": 3, "note": "text"})
    read = read_checkpoint(path)
    np.testing.assert_array_equal(read["w"], FLOATS)
    assert read["epoch"] == 3
    assert "note" not in read


def test_one_with_a_crc(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint([{"name": "w", "data": Tensor(FLOATS)}], str(path), crc_check=True)
    np.testing.assert_array_equal(read_checkpoint(path)["w"], FLOATS)


def test_a_damaged_one_is_read_or_named(tmp_path: Path) -> None:
    """One in two hundred of these ends a process that calls mindspore.load_checkpoint."""
    path = tmp_path / "a.ckpt"
    whole = save(path, w=Tensor(FLOATS), h=Tensor(FLOATS).astype(ms.float16), s=Tensor(3))
    refused = 0
    each = (whole[:i] + bytes([b]) + whole[i + 1 :] for i in range(40) for b in (0, 1, 8, 127, 128, 255))
    for content in [*damaged(whole, 400), *each]:
        path.write_bytes(content)
        refused += is_refused(lambda: read_checkpoint(path), f"read_checkpoint: {path}")
    assert refused > 200
