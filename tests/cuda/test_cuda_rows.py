"""centralize on a CUDA device, for rows of all lengths."""

from __future__ import annotations

import numpy as np
import pytest

from boost_ext import ops
from on_cuda import Interface, needs_cuda

pytestmark = needs_cuda


@pytest.mark.parametrize(
    "shape", [(2, 20000), (3, 8192), (2, 8200), (2, 20001), (1, 2**18), (700, 1), (5, 130), (3, 2056)]
)
@pytest.mark.parametrize("skip", [0, 1])
def test_centralize_rows_of_all_lengths(rng, shape, skip):
    """Held by lanes, by a block, and shared by blocks; the bits do not depend on where the tensor begins."""
    x = rng.standard_normal(shape).astype(np.float16) + np.float16(0.5)
    mean = x.astype(np.float64).mean(axis=1, keepdims=True)
    there, out = Interface(np.concatenate([np.zeros(skip, x.dtype), x.ravel()])), Interface(np.zeros_like(x))
    there.items |= {"shape": shape, "data": (there.memory.address + 2 * skip, False)}
    ops.centralize(there, out)
    np.testing.assert_array_equal(out.read(), (x.astype(np.float32) - mean.astype(np.float32)).astype(np.float16))
    ops.centralize(there)
    np.testing.assert_array_equal(there.read()[skip:].reshape(shape), out.read())
