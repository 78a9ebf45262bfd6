"""The log of a training run: JSON Lines, one object a line, a header first.

Each line is written and flushed as it happens, so that a run that crashed can be read up to its last step; a last line
that was cut off is left out. All lines are standard JSON: inf, -inf and nan are the strings "inf", "-inf" and "nan".
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

__all__ = [
    "SCHEMA_VERSION",
    "End",
    "Evaluation",
    "Fault",
    "Header",
    "Health",
    "LineSearch",
    "Parameters",
    "Record",
    "RunLogWriter",
    "Step",
    "TensorHealth",
    "TensorOverflow",
    "iterate",
    "keep",
]

SCHEMA_VERSION = 3
"""3 has the health of tensors, 2 learning rates and evaluations; 1 and 2 are read too."""
_READABLE = (1, 2, 3)
_SCALARS = {
    "loss",
    "loss_scale",
    "overflow",
    "largest_gradient",
    "gradient_norm",
    "frozen_share",
    "micro_batch",
    "seconds",
}
_HEADER_BYTES = 1 << 24
"""A first line beyond this is no header: whoever names a checkpoint by mistake should not wait for it to be read."""


def _to_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(float(value))


def _from_json(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf", "nan") else value


Number = Annotated[float, BeforeValidator(_from_json), PlainSerializer(_to_json, when_used="json")]
"""A float; inf and nan are strings in JSON."""


def _plain(value: Any) -> Any:
    """What JSON has a word for, of whatever a plan holds."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return _to_json(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Role = Literal["gradient", "weight", "update", "loss"]
"""What a tensor is to a parameter."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Parameters(_Record):
    """How much is trained.

    Examples:
        >>> from boost_ext.run_log import Parameters
        >>> Parameters(tensors=4, elements=2410)
        Parameters(tensors=4, elements=2410)
    """

    tensors: Count
    elements: Count


class Header(_Record):
    """What a run is: once, at its start, and again where it was resumed.

    Examples:
        >>> from boost_ext.run_log import Header
        >>> header = Header(started="2025-01-01T12:00:00+00:00", name="first")
        >>> header.schema_version, header.ranks
        (3, 1)
    """

    kind: Literal["header"] = "header"
    schema_version: int = SCHEMA_VERSION
    started: str
    """Date and time, ISO 8601, with the time zone."""
    name: str | None = None
    """The user's name of the run."""
    versions: dict[str, str | None] = {}
    mode: str | None = None
    """PYNATIVE_MODE or GRAPH_MODE."""
    device: str | None = None
    rank: Whole = 0
    ranks: Whole = 1
    cell: str | None = None
    """Class of the training cell."""
    observed: bool = False
    """Whether that is a cell of boost_ext, which tells more than a loss."""
    network: str | None = None
    optimizer: str | None = None
    parameters: Parameters | None = None
    """Those that need a gradient."""
    steps_per_epoch: Whole | None = None
    every: Whole = 1
    """Every how many steps one was recorded."""
    plan: Annotated[dict[str, Any] | None, BeforeValidator(_plain)] = None


class TensorOverflow(_Record):
    """A gradient with elements that are inf or nan.

    Examples:
        >>> from boost_ext.run_log import TensorOverflow
        >>> TensorOverflow(name="0.weight", inf=2, nan=0, first_index=17)
        TensorOverflow(name='0.weight', inf=2, nan=0, first_index=17, largest=None)
    """

    name: str
    inf: Count
    nan: Count
    first_index: Whole | None = None
    """Row-major, of the first of either."""
    largest: Number | None = None
    """Largest finite magnitude."""


class LineSearch(_Record):
    """What the line search of DimReduce did.

    Examples:
        >>> from boost_ext.run_log import LineSearch
        >>> LineSearch(accepted=True, rho=0.55, failed_in_a_row=0)
        LineSearch(accepted=True, rho=0.55, failed_in_a_row=0)
    """

    accepted: bool
    rho: Number
    """The step length it took; 0 for none."""
    failed_in_a_row: int | None = None
    """Searches that took none, up to this step."""

    def text(self) -> str:
        """In a few words."""
        if self.accepted:
            return f"line search {self.rho:g}"
        times = self.failed_in_a_row or 1
        return "line search failed" + (f" {times} times in a row" if times > 1 else "")


class Step(_Record):
    """One recorded step. What the training cell does not know is left out.

    Examples:
        >>> from boost_ext.run_log import Step
        >>> Step(step=1, loss=0.5, loss_scale=1024.0, overflow=False).model_dump(exclude_none=True)
        {'kind': 'step', 'step': 1, 'loss': 0.5, 'loss_scale': 1024.0, 'overflow': False}
    """

    kind: Literal["step"] = "step"
    step: Whole
    """Counted from 1."""
    epoch: Whole | None = None
    loss: Number | None = None
    loss_scale: Number | None = None
    """Of the next step."""
    learning_rates: tuple[Number, ...] | None = None
    """Of the last update: one, or one for each group that has its own."""
    overflow: bool | None = None
    overflowed: tuple[TensorOverflow, ...] | None = None
    largest_gradient: Number | None = None
    gradient_norm: Number | None = None
    """Of all gradients together, before clipping."""
    frozen_share: float | None = None
    """Share of the parameter elements whose gradient was not computed."""
    freeze_index: Whole | None = None
    micro_batch: Whole | None = None
    line_search: LineSearch | None = None
    seconds: Number | None = None
    """Of a step on the host: the mean over all since the last record."""
    elapsed: float | None = None
    """Seconds since the header was written."""
    slots: dict[str, Number] | None = None
    """Seconds of the step in each slot of the training cell."""

    def scalars(self) -> dict[str, float]:
        """The numbers that change from step to step and are there, by name."""
        values = self.model_dump(exclude_none=True, include=_SCALARS)
        if self.line_search is not None:
            values["line_search/rho"] = self.line_search.rho
            if self.line_search.failed_in_a_row is not None:
                values["line_search/failed_in_a_row"] = self.line_search.failed_in_a_row
        rates = self.learning_rates or ()
        values |= {"learning_rate" if len(rates) == 1 else f"learning_rate/{i}": rate for i, rate in enumerate(rates)}
        values |= {f"slots/{name}": seconds for name, seconds in (self.slots or {}).items()}
        return {name: float(value) for name, value in values.items()}

    def line(self, overflows: int = 0, last: Step | None = None) -> str:
        """The step in a line for a console, with how many steps overflowed since the last one, and the last of them."""
        parts = [f"step {self.step}" if self.epoch is None else f"epoch {self.epoch} step {self.step}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.learning_rates:
            parts.append(f"lr {', '.join(f'{rate:.4g}' for rate in self.learning_rates)}")
        if self.loss_scale is not None:
            parts.append(f"scale {self.loss_scale:g}")
        if self.frozen_share:
            parts.append(f"frozen {self.frozen_share:.0%}")
        if self.line_search is not None:
            parts.append(self.line_search.text())
        if self.seconds is not None:
            parts.append(f"{1e3 * self.seconds:.3g} ms")
        if overflows:
            parts.append(f"{overflows} overflowed")
            if last is not None and (tensors := last.overflowed):
                first, more = tensors[0], f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
                where = f"{first.inf} inf, {first.nan} nan, first at {first.first_index}"
                parts[-1] += f", last {first.name} ({where}){more}"
        return "  ".join(parts)


class Evaluation(_Record):
    """The metrics of an evaluation.

    Examples:
        >>> from boost_ext.run_log import Evaluation
        >>> Evaluation(step=100, epoch=1, metrics={"accuracy": 0.97}).metrics
        {'accuracy': 0.97}
    """

    kind: Literal["evaluation"] = "evaluation"
    step: Whole
    """The training steps that had been made."""
    epoch: Whole | None = None
    metrics: dict[str, Number]
    elapsed: float | None = None
    """Seconds since the header was written."""

    def line(self) -> str:
        """The evaluation in a line for a console."""
        place = f"step {self.step}" if self.epoch is None else f"epoch {self.epoch} step {self.step}"
        return "  ".join([place, "evaluation", *(f"{name} {value:.4g}" for name, value in self.metrics.items())])


class TensorHealth(_Record):
    """One tensor of a step: what :func:`boost_ext.ops.tensor_statistics` counts.

    Examples:
        >>> from boost_ext.run_log import TensorHealth
        >>> seen = TensorHealth(of="gradient", name="0.weight", elements=4, zeros=1, largest=4.0, norm=5.0)
        >>> seen.finite, seen.zero_share
        (True, 0.25)
    """

    of: Role
    name: str
    elements: Count
    inf: Count = 0
    nan: Count = 0
    first_index: Whole | None = None
    """In the order of the memory, of the first of either."""
    zeros: Count
    largest: Number
    """Largest finite magnitude, without the loss scale."""
    norm: Number
    """Of the finite elements, without the loss scale."""
    update_ratio: Number | None = None
    """Of a weight: the norm of its last update over its own norm."""

    @property
    def finite(self) -> bool:
        """Whether no element is inf or nan."""
        return not (self.inf or self.nan)

    @property
    def zero_share(self) -> float:
        """The share of the elements that are 0, from 0 to 1."""
        return self.zeros / self.elements if self.elements else 0.0


class Fault(_Record):
    """The tensor, or the loss, in which inf or nan came up first; the tensors, where one cannot be told.

    Examples:
        >>> from boost_ext.run_log import Fault
        >>> print(Fault(step=7, of="gradient", name="0.weight", inf=2, first_index=17))
        step 7: the gradient of 0.weight holds 2 inf, 0 nan, first at 17
    """

    step: Whole
    after: Whole | None = None
    """Where the step is not known: one after this, and at or before `step`."""
    of: Role
    name: str
    among: tuple[str, ...] | None = None
    """Where the tensor is not known: one of these, or one not looked at. `name` has the first three."""
    inf: Count = 0
    nan: Count = 0
    first_index: Whole | None = None
    rank: Whole | None = None
    """Where there are several."""

    def __str__(self) -> str:
        where = f"step {self.step}" if self.after is None else f"at or before step {self.step}, after step {self.after}"
        where += "" if self.rank is None else f", rank {self.rank}"
        what = self.name if self.of == "weight" else f"the {self.of} of {self.name}"
        text = f"{what} holds {self.inf} inf, {self.nan} nan, first at {self.first_index}"
        if self.of == "loss":
            text = f"the loss is {'nan' if self.nan else 'inf'}"
        return f"{where}: {text if self.among is None else f'inf or nan, first seen in {self.name}'}"


class Health(_Record):
    """The tensors of one step, and what is wrong with them; :class:`boost_ext.health.HealthMonitor` makes it.

    Examples:
        >>> from boost_ext.run_log import Health, TensorHealth
        >>> seen = TensorHealth(of="gradient", name="0.weight", elements=4, zeros=4, largest=0.0, norm=0.0)
        >>> print(Health(step=7, tensors=(seen,), dead=("0.weight",)).line())
        step 7  1 tensors finite  dead: 0.weight
    """

    kind: Literal["health"] = "health"
    step: Whole
    tensors: tuple[TensorHealth, ...]
    fault: Fault | None = None
    """The first cause on this rank, or one elsewhere."""
    elsewhere: tuple[Fault, ...] = ()
    """On other ranks."""
    dead: tuple[str, ...] = ()
    """Parameters of which the gradient is 0."""
    exploding: tuple[str, ...] = ()
    """Parameters of which the gradient is far larger than before."""

    def scalars(self) -> dict[str, float]:
        """The numbers of each tensor, by name."""
        values = {"health/faults": float(sum(not t.finite for t in self.tensors))}
        for t in self.tensors:
            values[f"health/{t.of}_norm/{t.name}"] = t.norm
            if t.of == "gradient":
                values[f"health/zero_share/{t.name}"] = t.zero_share
            if t.update_ratio is not None:
                values[f"health/update_ratio/{t.name}"] = t.update_ratio
        return values

    def line(self) -> str:
        """The findings in a line for a console."""
        if self.fault is not None:
            more = len(self.elsewhere) + (0 if self.fault.among else sum(not t.finite for t in self.tensors) - 1)
            parts = [str(self.fault) + (f", and {more} more" if more > 0 else "")]
        else:
            parts = [f"step {self.step}", f"{len(self.tensors)} tensors finite"]
        parts += [f"{what}: {', '.join(names)}" for what, names in self._findings() if names]
        return "  ".join(parts)

    def _findings(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("dead", self.dead), ("exploding", self.exploding)


class End(_Record):
    """How a run ended; a run without it was killed.

    Examples:
        >>> from boost_ext.run_log import End
        >>> End(error="RuntimeError: no space left").error
        'RuntimeError: no space left'
    """

    kind: Literal["end"] = "end"
    error: str | None = None
    """The exception that ended it."""


Record = Header | Step | Evaluation | Health | End
"""A line of a run log."""
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


class RunLogWriter:
    """Writes a run log, a line at a time.

    Args:
        path (Union[str, Path]): a new file; its directory is made.
        header (Header): the first line.
        resume (bool): append to the log that is there, if there is one. Default: False.

    Raises:
        FileExistsError: if the file exists and `resume` is False.
        ValueError: if `resume` is True and the file is no run log of this schema.
        OSError: the disk; no file is left that was not there before.

    Examples:
        >>> from boost_ext.run_log import End, Header, RunLogWriter, Step
        >>> writer = RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00"))
        >>> for step in (1, 2):
        ...     writer.write(Step(step=step, loss=1 / step))
        >>> writer.write(End())
        >>> writer.close()
    """

    def __init__(self, path: str | Path, header: Header, *, resume: bool = False) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        appends = not is_new and resume and self.path.stat().st_size > 0
        if not (is_new or resume):
            raise FileExistsError(
                f"RunLogWriter: path must be a new file, got {self.path}, which exists; "
                "to go on with that run, use resume=True"
            )
        if appends:
            next(iterate(self.path))
        self._cut: int | None = None
        # Unbuffered: what a full disk did not take would be tried again, and fail again, with the next line.
        self._file = self.path.open("ab", buffering=0)
        try:
            # A crash may have cut off the last line.
            self._append(header, after=b"" if not appends or _ends_with_newline(self.path) else b"\n")
        except OSError:
            self.close()
            if is_new:
                self.path.unlink(missing_ok=True)
            raise

    def write(self, record: Record) -> None:
        """Append a line and hand it to the operating system; a log that was closed is opened again.

        Raises:
            OSError: the disk. The log is without this line then, and may be written on.
        """
        if self._file.closed:
            self._file = self.path.open("ab", buffering=0)
        self._append(record)

    def _append(self, record: Record, after: bytes = b"") -> None:
        """All of the line or nothing; what could not be taken back at once is before the next line."""
        if self._cut is not None:
            self._file.truncate(self._cut)
        self._cut = self._file.seek(0, os.SEEK_END)
        rest = memoryview(after + record.model_dump_json(exclude_none=True).encode() + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._cut)
            raise
        self._cut = None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RunLogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def keep(path: str | Path) -> Path:
    """Rename a log, so that another one can have its name: ``run.jsonl`` to ``run.1.jsonl``, or the next free number.

    Returns:
        Path: the new one.

    Raises:
        ValueError: if the file is no run log of this schema. It keeps its name then.

    Examples:
        >>> from boost_ext.run_log import Header, RunLogWriter, keep
        >>> RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00")).close()
        >>> keep("run.jsonl").name
        'run.1.jsonl'
    """
    path = Path(path)
    next(iterate(path))
    names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    kept = next(name for name in names if not name.exists())
    return path.rename(kept)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def iterate(path: str | Path, on_progress: Callable[[int, int], None] | None = None) -> Iterator[Record]:
    """The records of a log, one by one, the header first.

    A line that a crash cut off is left out: the last one, or the one before the header of a resumed run.

    Args:
        path (Union[str, Path]): the log.
        on_progress (Callable, optional): called now and then with the bytes that were read and their total.

    Raises:
        ValueError: if the file is empty, no run log, of another schema version, or damaged; names file and line.

    Examples:
        >>> from boost_ext.run_log import Header, RunLogWriter, Step, iterate
        >>> with RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00")) as writer:
        ...     writer.write(Step(step=1, loss=0.5))
        >>> [record.kind for record in iterate("run.jsonl")]
        ['header', 'step']
    """
    path = Path(path)
    total = path.stat().st_size
    with path.open("rb") as file:
        first = file.readline(_HEADER_BYTES)
        yield _header(path, 1, first)
        done, cut_off = len(first), None
        for number, line in enumerate(file, 2):
            done += len(line)
            if on_progress is not None and number % 4096 == 0:
                on_progress(done, total)
            try:
                record = _record(path, number, line)
            except ValueError as error:
                if cut_off is not None:
                    break
                if line.endswith(b"\n"):
                    cut_off = error  # for good, unless the run was resumed here
                continue
            if cut_off is not None and not isinstance(record, Header):
                break
            cut_off = None
            yield record
        if cut_off is not None:
            raise cut_off
    if on_progress is not None:
        on_progress(total, total)


def _record(path: Path, number: int, line: bytes) -> Record:
    if b'"schema_version"' in line:
        return _header(path, number, line)
    try:
        return _RECORD.validate_json(line)
    except ValidationError as error:
        raise ValueError(f"run log {path}: line {number} is no record: {_first(error)}") from error


def _header(path: Path, number: int, line: bytes) -> Header:
    if not line:
        raise ValueError(f"run log {path}: the file is empty")
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("kind") != "header":
        start = line[:40].decode(errors="replace").strip()
        raise ValueError(f"run log {path}: line {number} must be a header, got {start!r}; this is no run log")
    version = content.get("schema_version")
    if version not in _READABLE:
        known = f"{', '.join(map(str, _READABLE[:-1]))} or {_READABLE[-1]}"
        raise ValueError(f"run log {path}: schema_version in line {number} must be {known}, got {version!r}")
    try:
        return Header.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(f"run log {path}: the header in line {number}: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
