"""The writers beside the run log: what they hand to TensorBoard, MLflow and Weights & Biases, and what these keep."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from boost_ext.report.log import End, Evaluation, Header, Record, Step
from boost_ext.report.writers import MLflow, TensorBoard, WeightsAndBiases

PLAN = {"level": "O1", "mode": "auto", "features": {"less_bn": {"status": "applied"}}}
HEADER = Header(started="2026-01-02", name="mine", versions={"boost_ext": "1", "mindspore": None}, plan=PLAN)
FACTS = {
    "started": "2026-01-02",
    "ranks": "1",
    "version.boost_ext": "1",
    "plan.level": "O1",
    "plan.mode": "auto",
    "plan.less_bn": "applied",
}
RECORDS: list[Record] = [
    HEADER,
    Step(step=1, loss=2.5, learning_rates=(0.1, 0.2), overflow=False),
    Step(step=2, loss=math.inf, loss_scale=8.0, overflow=True),
    Evaluation(step=2, metrics={"accuracy": 0.5}),
]
NUMBERS = {
    ("boost/loss", 1): 2.5,
    ("boost/learning_rate/0", 1): 0.1,
    ("boost/learning_rate/1", 1): 0.2,
    ("boost/overflow", 1): 0.0,
    ("boost/loss", 2): math.inf,
    ("boost/loss_scale", 2): 8.0,
    ("boost/overflow", 2): 1.0,
    ("boost/metrics/accuracy", 2): 0.5,
}


def write(writer: Any, *records: Record) -> None:
    for record in records:
        writer.write(record)
    writer.close()


class Recorder:
    """Stands for a library: notes what is called with what, and returns itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, *args, *([kwargs] if kwargs else [])))
            return self

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    def install(name: str, **attributes: Any) -> Recorder:
        recorder = Recorder()
        vars(recorder).update(attributes)
        monkeypatch.setitem(sys.modules, name, recorder)
        return recorder

    return install


def test_tensorboard(library: Callable[..., Recorder], tmp_path: Path) -> None:
    tensorboard = library("tensorboardX")
    writer = TensorBoard(tmp_path / "run")
    write(writer, *RECORDS)
    assert tensorboard.named("SummaryWriter") == [(str(tmp_path / "run"),)]
    assert {(name, step): value for name, value, step in tensorboard.named("add_scalar")} == NUMBERS
    (told,) = tensorboard.named("add_text")
    assert all(f"| {name} | {value} |" in told[1] for name, value in FACTS.items())
    assert tensorboard.calls[-1] == ("close",)
    write(writer, Step(step=3, loss=1.0))
    assert len(tensorboard.named("SummaryWriter")) == 2, "a file that was closed is followed by another one"


def mlflow_library(library: Callable[..., Recorder]) -> tuple[Recorder, Recorder]:
    client = Recorder()
    vars(client)["info"] = SimpleNamespace(run_id="r1")
    vars(client)["get_experiment_by_name"] = lambda name: None
    entities = SimpleNamespace(
        Metric=lambda key, value, timestamp, step: (key, value, step), Param=lambda key, value: (key, value)
    )
    return library("mlflow", MlflowClient=lambda uri: client, entities=entities), client


def test_mlflow(library: Callable[..., Recorder]) -> None:
    _, client = mlflow_library(library)
    writer = MLflow("mine", run_name="other")
    write(writer, *RECORDS)
    assert client.named("create_experiment") == [("mine",)]
    assert client.named("create_run")[0][1] == {"run_name": "other"}
    parameters, numbers = (call[1] for call in client.named("log_batch"))
    assert dict(parameters["params"]) == FACTS
    assert {(key, step): value for key, value, step in numbers["metrics"]} == NUMBERS
    write(writer, Step(step=3, loss=1.0), End(error="ValueError: no"))
    assert client.named("set_terminated") == [("r1", "FINISHED"), ("r1", "FAILED")]
    assert len(client.named("create_run")) == 1


def test_weights_and_biases(library: Callable[..., Recorder]) -> None:
    wandb = library("wandb", id="r1")
    writer = WeightsAndBiases("mine", mode="offline")
    write(writer, *RECORDS, End())
    write(writer, Step(step=3, loss=1.0), End(error="ValueError: no"))
    first, second = (call[0] for call in wandb.named("init"))
    assert first == {"name": "mine", "config": FACTS, "project": "mine", "mode": "offline"}
    assert (second["id"], second["resume"]) == ("r1", "allow")
    logged = {(name, more["step"]): value for named, more in wandb.named("log") for name, value in named.items()}
    assert logged == {**NUMBERS, ("boost/loss", 3): 1.0}
    assert wandb.named("finish") == [({"exit_code": 0},), ({"exit_code": 1},)]


@pytest.mark.parametrize(
    ("writer", "module", "extra"),
    [
        (lambda: TensorBoard("x"), "tensorboardX", "tensorboard"),
        (MLflow, "mlflow", "mlflow"),
        (WeightsAndBiases, "wandb", "wandb"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, writer: Callable[[], Any], module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=rf"needs {module}, .*pip install 'boost_ext\[{extra}\]'"):
        writer()


def test_event_files_as_tensorboard_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write(TensorBoard(tmp_path), *RECORDS)
    events = reader.EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()
    found = {(tag, event.step): event.value for tag in tags["scalars"] for event in events.Scalars(tag)}
    assert found == {key: pytest.approx(value) for key, value in NUMBERS.items()}
    assert [tag for tag in tags["tensors"] if tag.startswith("boost/run")]


def test_the_store_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    uri = tmp_path.as_uri()
    write(MLflow(tracking_uri=uri), *RECORDS, End())
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("boost_ext").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == ("mine", "FINISHED", FACTS)
    names = {name for name, _ in NUMBERS}
    found = {(n, m.step): m.value for n in names for m in client.get_metric_history(run.info.run_id, n)}
    assert found == NUMBERS


def test_an_offline_run_of_wandb(tmp_path: Path) -> None:
    """Its file is a log of protocol messages: 7 bytes, then for each a checksum, its length and its kind."""
    pytest.importorskip("wandb")
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    write(WeightsAndBiases(mode="offline", dir=str(tmp_path)), *RECORDS, End())
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content, found = path.read_bytes()[7:], {}
    while content:
        _, size, kind = struct.unpack_from("<IHB", content)
        assert kind == 1, "a whole message"
        message = messages.Record.FromString(content[7 : 7 + size])
        content = content[7 + size :]
        for item in message.history.item:
            name = item.key or "/".join(item.nested_key)
            found[name, message.history.step.num] = float(item.value_json.replace("Infinity", "inf"))
    assert {key: value for key, value in found.items() if key[0].startswith("boost/")} == NUMBERS
