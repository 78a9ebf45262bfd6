"""Learning rates and metrics: in the log, on the console, in the summary and in the report."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from rich.console import Console
from tests.html_page import Page
from tests.ms.monitored import LOG, Fake, batches, cell_of, model_of, quiet, records, steps
from tests.ms.networks import Mlp, Weight

from boost_ext import boost, optim
from boost_ext import report as run_report
from boost_ext.callbacks import BoostMonitor
from boost_ext.ms.optim.learning_rates import learning_rates
from boost_ext.report.log import Evaluation

RATES = [0.5, 0.25, 0.125, 0.0625]


class Halving(nn.learning_rate_schedule.LearningRateSchedule):
    """0.5, 0.25, 0.125 ..."""

    def construct(self, global_step: Tensor) -> Tensor:
        return 0.5 ** (global_step.astype(ms.float32) + 1.0)


def groups(net: nn.Cell, first: Any) -> list[dict[str, Any]]:
    weights = net.trainable_params()
    return [{"params": weights[:2], "lr": first}, {"params": weights[2:]}, {"order_params": weights}]


class Summary:
    """As mindspore.SummaryRecord takes scalars."""

    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}

    def add_value(self, kind: str, name: str, value: Tensor) -> None:
        self.scalars[name] = float(value.asnumpy())

    def record(self, step: int) -> None:
        pass


MADE: dict[str, tuple[Callable[[nn.Cell], Any], list[tuple[float, ...]]]] = {
    "one": (lambda net: nn.Momentum(net.trainable_params(), 0.1, 0.9), [(0.1,)] * 3),
    "a list": (lambda net: nn.Momentum(net.trainable_params(), RATES, 0.9), [(r,) for r in RATES[:3]]),
    "a schedule": (lambda net: optim.Adam(net.trainable_params(), Halving()), [(r,) for r in RATES[:3]]),
    "groups": (lambda net: optim.SGD(groups(net, 0.2), 0.1), [(0.2, 0.1)] * 3),
    "groups with a schedule": (
        lambda net: nn.Adam(groups(net, Halving()), 0.1),
        [(r, 0.1) for r in RATES[:3]],
    ),
    "inside LARS": (lambda net: optim.LARS(optim.SGD(net.trainable_params(), RATES)), [(r,) for r in RATES[:3]]),
    "found by AdaFactor": (
        lambda net: optim.AdaFactor(net.trainable_params(), None, scale_parameter=False, warmup_init=True),
        [(1e-6,), (2e-6,), (3e-6,)],
    ),
}


@pytest.mark.parametrize("made", MADE)
def test_rates_are_those_of_the_last_update(mode: int, made: str) -> None:
    make, expected = MADE[made]
    net = Mlp()
    optimizer = make(net)
    grads = tuple(Tensor(np.zeros(p.shape, np.float32)) for p in optimizer.parameters)
    np.testing.assert_allclose(learning_rates(optimizer), expected[0], rtol=1e-6, err_msg="before the first one")
    for rates in expected:
        optimizer(grads)
        np.testing.assert_allclose(learning_rates(optimizer), rates, rtol=1e-6)


def test_an_optimizer_that_does_not_tell() -> None:
    assert learning_rates(None) == learning_rates(nn.Dense(1, 1)) == ()


def test_frozen_and_experimental_optimizers() -> None:
    net = Mlp()
    assert learning_rates(boost.FreezeOpt(nn.SGD(net.trainable_params(), 0.5))) == (0.5,)
    other = ms.experimental.optim.SGD(net.trainable_params(), lr=0.25)
    assert learning_rates(other) == (0.25,)


def test_a_step_that_overflows_uses_up_no_rate() -> None:
    net = Weight()
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, nn.SGD(net.trainable_params(), RATES), Tensor(4.0))
    with quiet() as monitor:
        for x in ([1.0, 2.0], [np.inf, 0.0], [1.0, 2.0]):
            monitor.record(cell, cell(Tensor(x, ms.float32)))
    assert [(step.overflow, step.learning_rates) for step in steps()] == [
        (False, (0.5,)),
        (True, (0.5,)),
        (False, (0.25,)),
    ]


def test_fit_and_eval() -> None:
    seen, summary = StringIO(), Summary()
    monitor = BoostMonitor(LOG, per_print_steps=1, console=Console(file=seen, width=200), summary=summary)
    model = model_of()
    before = model.eval(batches(2), callbacks=[monitor])
    model.fit(2, batches(3), batches(2), callbacks=[monitor])
    after = model.eval(batches(2), callbacks=[monitor])
    found = [record for record in records() if isinstance(record, Evaluation)]
    assert [(e.step, e.epoch) for e in found] == [(0, None), (3, 1), (6, 2), (6, 2)]
    assert found[0].metrics == before
    assert found[-1].metrics == after
    assert set(found[1].metrics) == {"accuracy", "eval_loss"}
    assert records()[-1].kind == "end"
    assert f"epoch 2 step 6  evaluation  accuracy {after['accuracy']:.4g}" in seen.getvalue()
    assert "lr 0.01" in seen.getvalue()
    assert summary.scalars["boost/metrics/accuracy"] == pytest.approx(after["accuracy"])
    assert summary.scalars["boost/learning_rate"] == pytest.approx(0.01)
    page = Page(run_report.html([run_report.read(LOG)]))
    assert page.row("summary", "last learning rate") == ["0.01"]
    assert page.row("summary", "last accuracy") == [f"{after['accuracy']:.6g}"]
    losses = sorted(e.metrics["eval_loss"] for e in found[1:3])
    assert page.row("summary", "eval_loss, smallest to largest") == [f"{losses[0]:.6g} to {losses[1]:.6g}"]
    assert {"learning_rate", "metrics"} <= set(page.figures)


def test_an_evaluation_is_no_part_of_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cell = [0.0], Fake()
    monkeypatch.setattr("boost_ext.ms.training.monitor.time.perf_counter", lambda: now[0])
    with quiet() as monitor:
        monitor.record(cell, 1.0)
        now[0] = 10.0
        monitor.record_metrics({"accuracy": 0.5})
        now[0] = 10.5
        monitor.record(cell, 1.0)
    assert [step.seconds for step in steps()] == [None, 0.5]


def test_a_loop_of_ones_own_records_its_metrics() -> None:
    cell = cell_of()
    with quiet() as monitor:
        monitor.record(cell, cell(Tensor([1.0, 1.0])))
        monitor.record_metrics(
            {"f1": np.float32(0.5), "loss": Tensor(2.0), "confusion": np.eye(2), "note": "x"}, epoch=1
        )
    (found,) = (record for record in records() if isinstance(record, Evaluation))
    assert (found.step, found.epoch, found.metrics) == (1, 1, {"f1": 0.5, "loss": 2.0})
    with pytest.raises(TypeError, match="BoostMonitor: metrics must be a dict, got float"):
        quiet().record_metrics(0.5)
