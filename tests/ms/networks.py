"""Networks that more than one test file trains."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn


class Weight(nn.Cell):
    """loss = sum(w * x): the gradient is x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor([1.0, 2.0], ms.float32), name="w")

    def construct(self, x: Tensor) -> Tensor:
        return (self.w * x).sum()
