"""Evaluation and prediction of Model take the faster layers of training steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import boost_ext
from boost_ext.ms.core import fast_calls
from boost_ext.ms.core.substitutes import substituted

pytestmark = pytest.mark.usefixtures("graph_mode")


class Picture(nn.Cell):
    """A convolution that has a substitute in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, group=4), nn.BatchNorm2d(4)
        self.classes = nn.Dense(4, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.classes(ops.mean(ops.relu(self.norm(self.convolution(x))), (2, 3)))


def test_evaluation_and_prediction_are_compiled_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []

    @contextmanager
    def recorded(table: Any) -> Iterator[list[Any]]:
        with substituted(table) as found:
            yield found
        met.extend(found)

    monkeypatch.setattr(fast_calls, "substituted", recorded)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((12, 4, 6, 5), dtype=np.float32)
    dataset = ms.dataset.NumpySlicesDataset({"x": x, "y": np.arange(12, dtype=np.int32) % 3}, shuffle=False).batch(4)
    network = Picture()
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = boost_ext.Model(network, loss_fn, nn.SGD(network.trainable_params(), 0.5), metrics={"loss"})
    evaluation, prediction = model.eval_network, model.predict_network
    plain_model = ms.Model(network, loss_fn, metrics={"loss"})
    for expected in (2, 0):  # the second time with other weights, and compiled already
        model.train(1, dataset)
        met.clear()
        np.testing.assert_allclose(model.eval(dataset)["loss"], plain_model.eval(dataset)["loss"], rtol=1e-5)
        np.testing.assert_allclose(
            model.predict(Tensor(x)).asnumpy(), plain_model.predict(Tensor(x)).asnumpy(), rtol=1e-4, atol=1e-6
        )
        assert model.eval_network is evaluation
        assert model.predict_network is prediction
        assert met.count(ops.Conv2D) == expected
    with pytest.raises(RuntimeError, match="C_in"):
        model.predict(Tensor(x[:, :2]))
    assert model.predict_network is prediction
