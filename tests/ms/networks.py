"""Networks that more than one test file trains."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


class Weight(nn.Cell):
    """loss = sum(w * x): the gradient is x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor([1.0, 2.0], ms.float32), name="w")

    def construct(self, x: Tensor) -> Tensor:
        return (self.w * x).sum()


class Mlp(nn.Cell):
    """Three Dense layers without batch norm, the same weights every time."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Dense(6, 16), nn.Dense(16, 12), nn.Dense(12, 4)
        rng = np.random.default_rng(0)
        for p in self.trainable_params():
            p.set_data(Tensor((0.3 * rng.standard_normal(p.shape)).astype(np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        return self.head(ops.relu(self.second(ops.relu(self.first(x)))))


def mlp_batch(seed: int, size: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels for an Mlp."""
    rng = np.random.default_rng(seed)
    return Tensor(rng.standard_normal((size, 6)).astype(np.float32)), Tensor(rng.integers(0, 4, size).astype(np.int32))


def classes(net: nn.Cell) -> nn.Cell:
    """The network with its mean cross entropy, in training mode."""
    return nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")).set_train()


def layers(net: nn.Cell) -> list[list[Parameter]]:
    """Of an Mlp: everything, without the first layer, and the head alone. Groups of gradient freezing."""
    params = net.trainable_params()
    return [params, params[2:], params[4:]]


class Counted(nn.Cell):
    """Identity that counts its backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.backward_passes = 0

    def construct(self, x: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        self.backward_passes += 1
        return (dout,)


class Watched(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.after_first, self.after_second = Counted(), Counted()

    def construct(self, x: Tensor) -> Tensor:
        x = self.after_first(ops.relu(self.first(x)))
        return self.head(self.after_second(ops.relu(self.second(x))))
