"""The clock that is read inside graphs."""

import time

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.ms import native


class Timed(nn.Cell):
    """A clock before and one after a product of matrices, in one graph."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.stamps = Parameter(Tensor(np.zeros(3)), name="stamps", requires_grad=False)
        self.before, self.after = Tensor([0], ms.int32), Tensor([2], ms.int32)
        self.stamp = native.Timestamp()

    def construct(self, x: Tensor) -> Tensor:
        x = ops.depend(x, self.stamp(self.stamps, self.before, ()))
        y = x
        for _ in range(4):
            y = ops.matmul(y, x)
        return ops.depend(y, self.stamp(self.stamps, self.after, (y, ops.cast(y[0], ms.int64))))


def test_timestamps_of_a_graph(mode: int) -> None:
    cell, x = Timed(), Tensor(np.full((1200, 1200), 1 / 1200, np.float32))
    inside, around = [], []
    for _ in range(5):
        start = time.perf_counter()
        cell(x).asnumpy()
        end = time.perf_counter()
        first, untouched, last = cell.stamps.asnumpy().tolist()
        assert start <= first <= last <= end
        assert untouched == 0
        inside.append(last - first)
        around.append(end - start)
    # Nearly all that the cell does lies between the stamps; the first call compiles.
    assert max(i / a for i, a in zip(inside[1:], around[1:], strict=True)) > 0.3
