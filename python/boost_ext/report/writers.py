"""Where the records of a run log may go as well: TensorBoard, MLflow, Weights & Biases. They need no MindSpore.

A writer takes what :class:`boost_ext.report.log.RunLogWriter` takes, the header first. Numbers are called as in
``mindspore.SummaryRecord``: ``boost/loss``, ``boost/metrics/accuracy``.
"""

from __future__ import annotations

import os
import time
from typing import Any, Protocol

from boost_ext.report.log import End, Evaluation, Header, Health, Record, Step
from boost_ext.requirements import imported

__all__ = ["MLflow", "TensorBoard", "WeightsAndBiases", "Writer", "facts", "numbers"]


class Writer(Protocol):
    """What takes records, one by one as they are made."""

    def write(self, record: Record) -> None:
        """Take a record: a header, then steps and evaluations, then an end. More may follow after :meth:`close`."""

    def close(self) -> None:
        """Everything so far must be readable by others."""


def numbers(record: Step | Evaluation | Health) -> dict[str, float]:
    """The numbers of a record, by the names that they have in other tools."""
    if isinstance(record, Evaluation):
        return {f"boost/metrics/{name}": value for name, value in record.metrics.items()}
    return {f"boost/{name}": value for name, value in record.scalars().items()}


def facts(header: Header) -> dict[str, str]:
    """What a run is, as texts: versions, classes, the status of each algorithm."""
    known = header.model_dump(
        exclude_none=True, include={"started", "mode", "device", "ranks", "cell", "network", "optimizer"}
    )
    if header.parameters is not None:
        known["trained_elements"] = header.parameters.elements
    known |= {f"version.{name}": version for name, version in header.versions.items() if version is not None}
    plan = header.plan or {}
    known |= {f"plan.{key}": plan[key] for key in ("level", "mode") if key in plan}
    features = plan.get("features")
    if isinstance(features, dict):
        known |= {f"plan.{name}": d.get("status") for name, d in features.items() if isinstance(d, dict)}
    return {name: str(value) for name, value in known.items()}


class TensorBoard:
    """Event files for TensorBoard, by tensorboardX (``pip install 'boost_ext[tensorboard]'``).

    Args:
        folder (Union[str, Path]): of one run; TensorBoard compares the folders that lie beside it.

    Raises:
        ImportError: if tensorboardX is missing.

    Examples:
        >>> from boost_ext.callbacks import BoostMonitor
        >>> from boost_ext.writers import TensorBoard
        >>> monitor = BoostMonitor(writers=[TensorBoard("runs/tensorboard/first")])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._tensorboard = imported("tensorboard", "tensorboardX")
        self._folder = os.fspath(folder)
        self._file: Any = None

    def write(self, record: Record) -> None:
        """Add the numbers of a record, or the facts of a header as a table."""
        if self._file is None:
            self._file = self._tensorboard.SummaryWriter(self._folder)
        if isinstance(record, Header):
            rows = "\n".join(f"| {name} | {value} |" for name, value in facts(record).items())
            self._file.add_text("boost/run", f"| | |\n|---|---|\n{rows}")
        elif isinstance(record, (Step, Evaluation, Health)):
            for name, value in numbers(record).items():
                self._file.add_scalar(name, value, record.step)
            if isinstance(record, Evaluation):
                self._file.flush()

    def close(self) -> None:
        """Flush and close the file; what follows goes into another one of the folder."""
        if self._file is not None:
            self._file.close()
            self._file = None


class MLflow:
    """A run of MLflow (``pip install 'boost_ext[mlflow]'``), sent every few seconds.

    Args:
        experiment (str, optional): its name; it is made if it is missing. Default: "boost_ext".
        tracking_uri (str, optional): a server or a database. Default: None, that of ``MLFLOW_TRACKING_URI`` or
            MLflow's own.
        run_name (str, optional): Default: None, the name in the header.

    Raises:
        ImportError: if MLflow is missing.

    Examples:
        >>> from boost_ext.callbacks import BoostMonitor
        >>> from boost_ext.writers import MLflow
        >>> monitor = BoostMonitor(writers=[MLflow("digits", tracking_uri="http://localhost:5000")])
    """

    def __init__(
        self, experiment: str = "boost_ext", *, tracking_uri: str | None = None, run_name: str | None = None
    ) -> None:
        self._mlflow = imported("mlflow", "mlflow")
        self._experiment, self._name = experiment, run_name
        self._client = self._mlflow.MlflowClient(tracking_uri)
        self._run: str | None = None
        self._pending: list[Any] = []
        self._sent = time.monotonic()
        self._failed = False

    def write(self, record: Record) -> None:
        """Begin the run with a header; keep the numbers of a record for the next message."""
        if isinstance(record, Header):
            if self._run is None:
                self._run = self._begun(record)
        elif isinstance(record, End):
            self._failed = record.error is not None
        else:
            now = int(1000 * time.time())
            metric = self._mlflow.entities.Metric
            self._pending += [metric(name, value, now, record.step) for name, value in numbers(record).items()]
            if len(self._pending) >= _BATCH or time.monotonic() - self._sent > _SECONDS:
                self._send()

    def _begun(self, header: Header) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        identity = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        run = self._client.create_run(identity, run_name=self._name or header.name)
        parameter = self._mlflow.entities.Param
        parameters = [parameter(name, value) for name, value in facts(header).items()]
        self._client.log_batch(run.info.run_id, params=parameters)
        return str(run.info.run_id)

    def _send(self) -> None:
        # Taken off first: what a server refuses once is not offered again with each step.
        pending, self._pending, self._sent = self._pending, [], time.monotonic()
        for start in range(0, len(pending), _BATCH):
            self._client.log_batch(self._run, metrics=pending[start : start + _BATCH])

    def close(self) -> None:
        """Send what is left, and end the run."""
        if self._run is not None:
            self._send()
            self._client.set_terminated(self._run, "FAILED" if self._failed else "FINISHED")


_BATCH = 500
"""Numbers in a message; MLflow takes 1000."""
_SECONDS = 5.0
"""Between messages."""


class WeightsAndBiases:
    """A run of Weights & Biases (``pip install 'boost_ext[wandb]'``).

    Args:
        project (str, optional): Default: "boost_ext".
        **options: of ``wandb.init``, such as ``mode="offline"``, ``dir=`` or ``name=``.

    Raises:
        ImportError: if wandb is missing.

    Examples:
        >>> from boost_ext import run_log
        >>> from boost_ext.writers import WeightsAndBiases
        >>> writer = WeightsAndBiases("digits", mode="offline")
        >>> for record in run_log.iterate("run.jsonl"):  # of a training that has ended
        ...     writer.write(record)
        >>> writer.close()
    """

    def __init__(self, project: str = "boost_ext", **options: Any) -> None:
        self._wandb = imported("wandb", "wandb")
        self._options = {"project": project, **options}
        self._header: Header | None = None
        self._run: Any = None
        self._failed = False

    def write(self, record: Record) -> None:
        """Begin the run with a header; log the numbers of a record."""
        if isinstance(record, Header):
            self._header = record
        elif isinstance(record, End):
            self._failed = record.error is not None
            return
        if self._run is None:
            self._run = self._begun()
        if isinstance(record, (Step, Evaluation, Health)):
            self._run.log(numbers(record), step=record.step)

    def _begun(self) -> Any:
        header = self._header
        known = {} if header is None else {"name": header.name, "config": facts(header)}
        run = self._wandb.init(**known | self._options)
        # What follows after close goes on with it.
        self._options |= {"id": run.id, "resume": "allow"}
        return run

    def close(self) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish(exit_code=int(self._failed))
            self._run = None
