"""Moving statistics made anew: beside float64 NumPy, and what must stay as it is."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from boost_ext import boost

BATCHES = [np.random.default_rng(i).standard_normal((4 + i, 3)).astype(np.float32) * (1 + i) + i for i in range(3)]


class Norms(nn.Cell):
    """A batch norm of the input, a Dense, a batch norm of its output; one that is frozen, and one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dense, self.second = nn.BatchNorm1d(3), nn.Dense(3, 2), nn.BatchNorm1d(2, momentum=0.5)
        self.frozen, self.idle = nn.BatchNorm1d(2, use_batch_statistics=False), nn.BatchNorm1d(2)
        self.dense.weight.set_data(Tensor(np.arange(6, dtype=np.float32).reshape(2, 3) / 3))
        self.dense.bias.set_data(Tensor([0.5, -3.0], ms.float32))
        for i, p in enumerate(self.get_parameters()):
            if "moving" in p.name:
                p.set_data(Tensor(np.full(p.shape, 0.5 + i, np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        return self.frozen(self.second(self.dense(self.first(x))))


def statistics(net: nn.Cell) -> dict[str, np.ndarray]:
    return {p.name: p.asnumpy().copy() for p in net.get_parameters()}


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and the unbiased variance, which is what the layers keep."""
    return x.mean(axis=0), x.var(axis=0, ddof=1)


def test_cumulative_means(mode: int) -> None:
    net = Norms()
    net.set_train(False)
    net.dense.set_train(True)
    before = statistics(net)
    dataset = ms.dataset.GeneratorDataset([(b, np.int32(i)) for i, b in enumerate(BATCHES)], ["x", "y"], shuffle=False)
    assert boost.update_batch_norm(net, dataset) == 2
    after = statistics(net)
    weight = before["dense.weight"].astype(np.float64)
    first, second = [], []
    for batch in BATCHES:
        x = batch.astype(np.float64)
        first.append(moments(x))
        hidden = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + net.first.eps) @ weight.T + [0.5, -3.0]
        second.append(moments(hidden))
    for name, values in (("first", first), ("second", second)):
        mean, variance = (np.mean(v, axis=0) for v in zip(*values, strict=True))
        np.testing.assert_allclose(after.pop(f"{name}.moving_mean"), mean, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(after.pop(f"{name}.moving_variance"), variance, rtol=1e-5)
    for name, value in after.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert [c.training for c in (net, net.first, net.dense, net.second)] == [False, False, True, False]
    again = boost.update_batch_norm(net, [(Tensor(b),) for b in BATCHES])
    assert again == 2
    np.testing.assert_allclose(statistics(net)["first.moving_mean"], np.mean([m for m, _ in first], axis=0), rtol=1e-5)


class Failing:
    def __iter__(self) -> Any:
        yield BATCHES[0]
        raise OSError("the disk")


@pytest.mark.parametrize(
    ("dataset", "inputs", "error", "message"),
    [
        (Failing(), 1, OSError, "the disk"),
        ([], 1, ValueError, "dataset must hold a batch at least, got none"),
        (3, 1, TypeError, "dataset must be a dataset or batches, got int"),
        ([BATCHES[0]], 2, ValueError, "inputs must be at most the columns of a batch, got 2 of 1"),
        ([BATCHES[0]], 0, ValueError, "inputs must be >= 1, got 0"),
        ([BATCHES[0]], True, TypeError, "inputs must be an int, got bool"),
        ([np.full((4, 3), np.nan, np.float32)], 1, ValueError, r"first\.moving_mean must stay finite, got inf or nan"),
    ],
)
def test_a_failure_changes_nothing(dataset: Any, inputs: Any, error: type[Exception], message: str) -> None:
    net = Norms().set_train(False)
    before = statistics(net)
    with pytest.raises(error, match=message):
        boost.update_batch_norm(net, dataset, inputs=inputs)
    for name, value in statistics(net).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert not net.second.training


def test_nothing_to_do_and_nothing_to_be_done() -> None:
    assert boost.update_batch_norm(nn.Dense(3, 2), Failing()) == 0
    with pytest.raises(ValueError, match="mean must have a momentum below 1, got 1, which lets nothing in"):
        boost.update_batch_norm(nn.BatchNorm1d(3, momentum=1.0), BATCHES)
    with pytest.raises(TypeError, match="network must be a Cell, got int"):
        boost.update_batch_norm(3, BATCHES)
