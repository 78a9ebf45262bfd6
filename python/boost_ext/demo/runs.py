"""The ways to train the same network on the same batches.

``plain``
    What a user writes without boost_ext: ``nn.TrainOneStepCell`` and ``nn.Momentum``.
``boost``
    The same, with ``boost_ext.boost.BoostTrainOneStepCell`` in its place: the whole step is one graph.
``amp``
    Mixed precision by ``boost_ext.amp.build_train_network``, level O2, with a dynamic loss scale that starts too high.
``dim_reduce``
    The experiment of Li et al., "Low dimensional trajectory hypothesis is true: DNNs can be trained in tiny subspaces",
    2021. A short plain run saves checkpoints; the principal components of its path span a subspace of a few dimensions;
    then the *initial* network is trained again by quasi-Newton steps in there. Nothing but the subspace is taken over
    from the short run: what the second training reaches, it has learned with those few numbers and the batch
    statistics. (DimReduce adds a thousandth of the gradient outside the subspace; with ``alpha=0`` the test accuracy
    was the same.) The short run and the PCA count in this run's time.

All start from the same weights and see as many epochs; all but ``amp`` compute in float32. A run's clock starts before
its network is built and includes compilation and the evaluations; importing MindSpore and loading its kernels
(:func:`warm_up`) come before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from boost_ext.amp import DynamicLossScaleManager, build_train_network
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.config import DimReduceConfig
from boost_ext.demo.digits import Digits, batches, steps_per_epoch
from boost_ext.demo.network import accuracy, loss_function, momentum, new_network
from boost_ext.demo.results import Evaluation, Run
from boost_ext.demo.settings import Settings

__all__ = ["RUNS", "train", "warm_up"]

OnStep = Callable[[str, int, int, float, float | None], None]
"""Called after each step and each evaluation with: name, steps done, steps in all, loss, last test accuracy."""


@dataclass
class _Log:
    """The curves of a run while it runs."""

    losses: list[float] = field(default_factory=list)
    loss_scales: list[float] = field(default_factory=list)
    overflows: list[bool] = field(default_factory=list)
    accepted_rhos: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)


Step = Callable[[Tensor, Tensor, _Log], None]
"""Makes one step and appends what it gives to the log, all but the time."""


@dataclass(frozen=True)
class _Trainer:
    title: str
    network: nn.Cell
    step: Step
    batch_size: int


def train(names: Sequence[str], digits: Digits, settings: Settings, folder: Path, on_step: OnStep) -> list[Run]:
    """Do some of the :data:`RUNS`; ``folder`` takes the files that they leave.

    They take turns, an epoch each, so that what else the machine does at a time slows all of them down, not one.
    """
    ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)
    sessions = [_Session(name, digits, settings, folder) for name in names]
    for epoch in range(settings.epochs):
        for session in sessions:
            session.train_epoch(epoch, on_step)
    return [session.result() for session in sessions]


class _Session:
    """A run between its epochs. Its clock stands still while it is another run's turn."""

    def __init__(self, name: str, digits: Digits, settings: Settings, folder: Path) -> None:
        self.name, self.digits, self.settings = name, digits, settings
        self.log = _Log()
        start = perf_counter()
        self.trainer = RUNS[name](digits, settings, folder)
        self.seconds = self.preparation_seconds = perf_counter() - start

    def train_epoch(self, epoch: int, on_step: OnStep) -> None:
        start, log, trainer = perf_counter(), self.log, self.trainer
        total = self.settings.epochs * steps_per_epoch(self.digits, trainer.batch_size)
        for images, labels in batches(self.digits, trainer.batch_size, epoch, self.settings.seed):
            began = perf_counter()
            trainer.step(Tensor(images), Tensor(labels), log)
            log.step_seconds.append(perf_counter() - began)
            last = log.evaluations[-1].accuracy if log.evaluations else None
            on_step(self.name, len(log.losses), total, log.losses[-1], last)
        right = accuracy(trainer.network, self.digits)
        self.seconds += perf_counter() - start
        log.evaluations.append(Evaluation(len(log.losses), self.seconds, right))
        on_step(self.name, len(log.losses), total, log.losses[-1], right)

    def result(self) -> Run:
        curves: dict[str, Any] = {key: tuple(values) for key, values in vars(self.log).items()}
        return Run(
            name=self.name,
            title=self.trainer.title,
            batch_size=self.trainer.batch_size,
            steps_per_epoch=steps_per_epoch(self.digits, self.trainer.batch_size),
            preparation_seconds=self.preparation_seconds,
            seconds=self.seconds,
            **curves,
        )


def warm_up(digits: Digits) -> None:
    """Load MindSpore's eager kernels, so that the first run does not pay for it. Nothing is compiled here."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    settings = Settings()
    network = new_network(settings.seed)
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, loss_function()), momentum(network, settings))
    for images, labels in list(batches(digits, settings.batch_size, 0, settings.seed))[:3]:
        cell(Tensor(images), Tensor(labels)).asnumpy()
    accuracy(network, digits)


def _plain(digits: Digits, settings: Settings, folder: Path) -> _Trainer:
    network = new_network(settings.seed)
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, loss_function()), momentum(network, settings))
    cell.set_train()

    def step(images: Tensor, labels: Tensor, log: _Log) -> None:
        log.losses.append(float(cell(images, labels).asnumpy()))

    return _Trainer("MindSpore", network, step, settings.batch_size)


def _boost(digits: Digits, settings: Settings, folder: Path) -> _Trainer:
    network = new_network(settings.seed)
    cell = BoostTrainOneStepCell(nn.WithLossCell(network, loss_function()), momentum(network, settings))
    cell.set_train()

    def step(images: Tensor, labels: Tensor, log: _Log) -> None:
        loss, _, _ = cell(images, labels)
        log.losses.append(float(loss.asnumpy()))

    return _Trainer("step cell", network, step, settings.batch_size)


def _amp(digits: Digits, settings: Settings, folder: Path) -> _Trainer:
    network = new_network(settings.seed)
    manager = DynamicLossScaleManager(settings.init_loss_scale, settings.scale_factor, settings.scale_window)
    cell = build_train_network(
        network,
        momentum(network, settings),
        loss_function(),
        level="O2",
        loss_scale_manager=manager,
    )
    cell.set_train()

    def step(images: Tensor, labels: Tensor, log: _Log) -> None:
        loss, overflow, scale = cell(images, labels)
        log.losses.append(float(loss.asnumpy()))
        log.overflows.append(bool(overflow.asnumpy()))
        log.loss_scales.append(float(scale.asnumpy()))

    return _Trainer("O2, fp16", network, step, settings.batch_size)


def _dim_reduce(digits: Digits, settings: Settings, folder: Path) -> _Trainer:
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True)
    short = _plain(digits, settings, folder)
    size = settings.short_batch_size
    log = _Log()
    for epoch in range(settings.short_epochs):
        for images, labels in batches(digits, size, epoch, settings.seed):
            if len(log.losses) % settings.checkpoint_every == 0:
                path = checkpoints / f"short-{len(log.losses)}.ckpt"
                ms.save_checkpoint(short.network, str(path))
            short.step(Tensor(images), Tensor(labels), log)

    network = new_network(settings.seed)
    weights = sum(p.size for p in network.trainable_params())
    cell = BoostTrainOneStepCell(
        nn.WithLossCell(network, loss_function()),
        nn.SGD(network.trainable_params(), settings.dim_reduce_learning_rate),
        dim_reduce=DimReduceConfig(
            n_components=settings.n_components,
            weight_load_dir=str(checkpoints),
            pca_mat_path=str(folder / "pca.safetensors"),
        ),
    )
    cell.set_train()
    accepted = cell.apply_slot.dim_reduce.accepted_rho

    def step(images: Tensor, labels: Tensor, log: _Log) -> None:
        loss, _, _ = cell(images, labels)
        log.losses.append(float(loss.asnumpy()))
        log.accepted_rhos.append(float(accepted.asnumpy()[0]))

    title = f"{settings.n_components} of {weights} dims"
    return _Trainer(title, network, step, settings.dim_reduce_batch_size)


RUNS: dict[str, Callable[[Digits, Settings, Path], _Trainer]] = {
    "plain": _plain,
    "boost": _boost,
    "amp": _amp,
    "dim_reduce": _dim_reduce,
}
