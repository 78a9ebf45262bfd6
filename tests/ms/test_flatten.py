"""Many tensors as one vector and back: what the all-reduce of gradients carries."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from tests.ms.tiers import standard

from boost_ext.ms import native

DTYPES = [ms.float32, ms.float16, ms.bfloat16]


class ThereAndBack(nn.Cell):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.flatten, self.unflatten = native.Flatten(), native.Unflatten()
        self.factor = Tensor([factor], ms.float32)

    def construct(self, *tensors: Tensor) -> tuple:
        whole = self.flatten(tensors)
        return whole, self.unflatten(self.factor, whole, tensors)


def tensors(shapes: list[tuple[int, ...]]) -> tuple[list[np.ndarray], tuple[Tensor, ...]]:
    rng = np.random.default_rng(0)
    # Multiples of 1/8 below 8: the same in all dtypes.
    values = [(rng.integers(-63, 64, s) / 8).astype(np.float32) for s in shapes]
    return values, tuple(Tensor(v).astype(DTYPES[i % 3]) for i, v in enumerate(values))


@pytest.mark.parametrize(
    "shapes",
    [[(5,)], [(1,), (2, 3)], [(3, 4), (7,), (1, 2, 3), (40000,), (1,)], [(2, i + 1) for i in range(700)]],
    ids=["one", "two", "many shapes", "700"],
)
@standard(lambda p: p.graph or len(p.shapes) < 700)
def test_there_and_back(mode: int, shapes: list[tuple[int, ...]]) -> None:
    """Several lists in one process: MindSpore keeps inferred shapes by the name of the primitive."""
    values, given = tensors(shapes)
    whole, parts = ThereAndBack(0.5)(*given)
    assert whole.dtype == ms.float32
    np.testing.assert_array_equal(whole.asnumpy(), np.concatenate([v.ravel() for v in values]))
    for part, tensor, value in zip(parts, given, values, strict=True):
        assert (part.dtype, part.shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(part.astype(ms.float32).asnumpy(), value / 2)
        np.testing.assert_array_equal(tensor.astype(ms.float32).asnumpy(), value)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_inf_and_nan_stay_where_they_are(mode: int, bad: float) -> None:
    values, given = tensors([(4,), (3, 2), (5,)])
    values[1][2, 1] = bad
    given = (given[0], Tensor(values[1]), given[2])
    _, parts = ThereAndBack(0.5)(*given)
    for part, value in zip(parts, values, strict=True):
        np.testing.assert_array_equal(part.astype(ms.float32).asnumpy(), value / 2)
