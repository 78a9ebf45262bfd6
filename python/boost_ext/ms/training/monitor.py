"""A callback that writes down what each training step did."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.communication import GlobalComm, get_rank
from rich.console import Console

from boost_ext.arguments import checked_keywords
from boost_ext.health import HealthMonitor
from boost_ext.ms.core import typed
from boost_ext.ms.core.cell_tree import training_cell
from boost_ext.ms.core.step_outputs import loss_of, number_of, overflow_of, scale_of, weights_of
from boost_ext.ms.optim.learning_rates import learning_rates
from boost_ext.ms.ranks.ranks import rank_count
from boost_ext.ms.training.monitor_outputs import MonitorLog, Surviving
from boost_ext.ms.training.run_header import header_of
from boost_ext.report.log import End, Evaluation, Record, Step, keep
from boost_ext.report.writers import Writer

__all__ = ["BoostMonitor"]

_ERROR_CHARS = 500
_LOOKED_AT = (ms.float32, ms.float16, ms.bfloat16)


class BoostMonitor(typed.Callback):
    r"""Records training: a line a step into a file, to other tools, and onto the console.

    Of the training cells of boost_ext it records loss, learning rates, loss scale, overflow with the names of the
    gradients that held inf or nan, the largest gradient, the share of the parameters that was frozen, the micro-batch,
    the line search, and the time of the step; once, at the start, the plan, the parameters, versions and mode. Of any
    other training cell it records loss, learning rates and time, and overflow and loss scale if they are its second and
    third output; it says so once. The metrics of ``Model.fit``, and of ``Model.eval`` with the monitor among its
    callbacks, are recorded too. ``boost-ext report`` draws the file; docs/monitoring.md describes it.

    A callback of ``mindspore.Model`` and of :class:`boost_ext.Model`; put it first, after a :class:`TrainingState` if
    there is one, since its time of a step includes the callbacks before it. In a loop of your own call :meth:`record`
    after each step. With several ranks only rank 0 records, unless `path` holds ``{rank}``. An output that cannot be
    written, on a full disk, is warned of once.

    Args:
        path (Union[str, Path], optional): the log, a JSON Lines file; :mod:`boost_ext.report.log` describes it. A log
            that is there already is kept: ``run.jsonl`` becomes ``run.1.jsonl``, the next one ``run.2.jsonl``, and so
            on. Default: None, no file.
        every (int, optional): record the first step and then every that many. A step that overflowed is recorded
            always. Default: 1.
        per_print_steps (int, optional): print a line every that many steps, at the next recorded one; 0 for never.
            Default: 100.
        instrument (bool, optional): measure the time of each slot of the training cell too, in a loop of your own from
            the second step on: compiles the step again and makes it somewhat slower. Default: False.
        summary (SummaryRecord, optional): takes the numbers as scalars named ``boost/...``. The caller closes it.
            Default: None.
        writers (Sequence[Writer], optional): of :mod:`boost_ext.writers`, such as ``TensorBoard("runs/tensorboard")``:
            they take the same records as the log. One that fails at the header raises its error; later errors are
            warned of once. Default: (), none.
        name (str, optional): of the run, in reports. Default: None, the name of the file.
        health (HealthMonitor, optional): looks at the gradients of each rank, and at the weights. Its records go where
            the others go. Makes the training cell take statistics, which compiles the step again; in a loop of your own
            from the second step on. With several ranks give it to the monitor of each. Default: None.
        resume (int, optional): go on with the log that is there: the number of steps that had been made when the
            training that is now resumed was saved. Later steps in the log are superseded. Default: None.
        console (Console, optional): of rich, where to print. Default: None, the standard output.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for `every` < 1, `per_print_steps` < 0, `resume` < 0 or without `path`, or if there is nowhere to
            record to.
        FileExistsError: at the first step, if `path` is a file that is no run log, and `resume` is None.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext.boost import BoostTrainOneStepCell
        >>> from boost_ext.callbacks import BoostMonitor
        >>> net = nn.Dense(4, 1)
        >>> step = BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
        >>> with BoostMonitor("runs/first.jsonl", per_print_steps=0) as monitor:  # a callback of Model, too
        ...     for _ in range(3):
        ...         monitor.record(step, step(ms.ops.ones((2, 4)), ms.ops.ones((2, 1))))
    """

    @checked_keywords
    def __init__(
        self,
        path: str | Path | None = None,
        *,
        every: int = 1,
        per_print_steps: int = 100,
        instrument: bool = False,
        summary: Any = None,
        writers: Sequence[Writer] = (),
        name: str | None = None,
        health: HealthMonitor | None = None,
        resume: int | None = None,
        console: Console | None = None,
    ) -> None:
        super().__init__()
        _check_int("every", every, 1)
        _check_int("per_print_steps", per_print_steps, 0)
        if not isinstance(instrument, bool):
            raise TypeError(f"BoostMonitor: instrument must be a bool, got {type(instrument).__name__}")
        if path is not None and not isinstance(path, (str, Path)):
            raise TypeError(f"BoostMonitor: path must be a str or a Path, got {type(path).__name__}")
        if resume is not None:
            _check_int("resume", resume, 0)
            if path is None:
                raise ValueError("BoostMonitor: resume needs the path of the log to go on with, got None")
        if summary is not None and not (hasattr(summary, "add_value") and hasattr(summary, "record")):
            raise TypeError(f"BoostMonitor: summary must be a mindspore.SummaryRecord, got {type(summary).__name__}")
        for writer in writers:
            if not (hasattr(writer, "write") and hasattr(writer, "close")):
                raise TypeError(f"BoostMonitor: writers must hold writers of records, got {type(writer).__name__}")
        if health is not None and not isinstance(health, HealthMonitor):
            raise TypeError(f"BoostMonitor: health must be a HealthMonitor, got {type(health).__name__}")
        if path is None and summary is None and not writers and not per_print_steps and health is None:
            raise ValueError("BoostMonitor: nothing to record to: give path, summary, writers or per_print_steps")
        self._rank: int = get_rank() if GlobalComm.INITED else 0
        self._ranks: int = rank_count()
        self._active = self._rank == 0 or "{rank}" in str(path)
        self._path = None if path is None else Path(str(path).replace("{rank}", str(self._rank)))
        self._every, self._per_print_steps, self._instrument = every, per_print_steps, instrument
        self._summary, self._name, self._resume = summary, name, resume
        self._console = console or Console()
        self._writers = tuple(writers)
        self._health = health
        if health is not None and self._ranks > 1 and health.rank is None:
            health.rank = self._rank
        self._weights: dict[str, Any] = {}
        self._log: MonitorLog | None = None
        self._surviving = Surviving()
        self._target: nn.Cell | None = None
        self._cell: Any = None
        """The training cell of boost_ext in the target, if there is one."""
        self._optimizer: Any = None
        self._step = self._printed = resume or 0
        self._started = 0.0
        self._unfinished = self._in_model = False
        self._model_steps = 0
        """What ``mindspore.Model`` has counted; it begins anew with each ``train``."""
        self._began: float | None = None
        self._seconds, self._timed = 0.0, 0
        """Of the steps since the last record."""
        self._recorded = False
        self._epoch: int | None = None
        self._early: list[Evaluation] = []
        """Evaluations before the log was begun."""
        self._overflows, self._last_overflow = 0, Step(step=0)
        """Since the last printed line."""

    def on_train_begin(self, run_context: Any) -> None:
        """Find the training cell, and begin the log."""
        params = run_context.original_args()
        if self._active:
            self._start(params.get("train_network"), params)
            self._model_steps = params.cur_step_num
            self._in_model = True
            if self._instrument:
                self._cell.instrument(True)
        self._watch(params.get("train_network"))

    def on_train_step_begin(self, run_context: Any) -> None:
        """Look at the clock."""
        self._began = time.perf_counter()

    def on_train_step_end(self, run_context: Any) -> None:
        """Record the step."""
        if self._active:
            params = run_context.original_args()
            # A data sink makes many steps in one call, of which the last one is seen.
            steps = max(1, params.cur_step_num - self._model_steps)
            self._model_steps = params.cur_step_num
            self._take(params.net_outputs, steps, params.cur_epoch_num, None)
            self._look(params.net_outputs)

    def on_eval_end(self, run_context: Any) -> None:
        """Record the metrics of ``Model.eval`` and ``Model.fit``."""
        params = run_context.original_args()
        metrics = params.get("eval_results") or params.get("metrics")
        if isinstance(metrics, Mapping):
            self.record_metrics(metrics, epoch=self._epoch)

    def on_train_end(self, run_context: Any) -> None:
        """The end of the run, unless another training follows."""
        self._in_model = False

    def record(self, cell: nn.Cell, outputs: Any, *, epoch: int | None = None, seconds: float | None = None) -> None:
        """Record a step of a loop of your own; call it after each step.

        Args:
            cell (Cell): the training cell, the same one each time.
            outputs (Union[Tensor, tuple, float]): what it returned, or the loss. With `every` > 1 pass all of it: the
                overflow of a step that is not recorded is seen there only.
            epoch (int, optional): from 1. Default: None.
            seconds (float, optional): what the step took. Default: None, the time since the last record.

        Raises:
            TypeError: if `cell` is no Cell.
            ValueError: if it is another cell than before.
        """
        if self._active:
            first = self._target is None
            if first or cell is not self._target:
                self._start(cell, {})
            self._take(outputs, 1, epoch, seconds)
            self._look(outputs)
            if first and self._instrument:  # it makes the cell forget the step before
                self._cell.instrument(True)
        self._watch(cell)
        self._began = time.perf_counter()

    def record_metrics(self, metrics: Mapping[str, Any], *, epoch: int | None = None) -> None:
        """Record an evaluation of a loop of your own, after the steps recorded so far.

        Args:
            metrics (dict): name to number; other values, such as arrays of several elements, are left out.
            epoch (int, optional): from 1. Default: None.

        Raises:
            TypeError: if `metrics` is no dict.
        """
        if not isinstance(metrics, Mapping):
            raise TypeError(f"BoostMonitor: metrics must be a dict, got {type(metrics).__name__}")
        values = {str(name): number for name, value in metrics.items() if (number := number_of(value)) is not None}
        if not (self._active and values):
            return
        now = time.perf_counter()
        elapsed = now - self._started if self._target is not None else None
        if self._began is not None:
            self._began = now  # the evaluation is no part of the next step
        evaluation = Evaluation(step=self._step, epoch=epoch, metrics=values, elapsed=elapsed)
        if self._target is None:
            self._early.append(evaluation)
        else:
            self._write(evaluation)
        self._summarize(self._step, {f"metrics/{name}": value for name, value in values.items()})
        if self._per_print_steps:
            self._say(evaluation.line())

    def close(self) -> None:
        """The run is over: note it in the log and close it. ``mindspore.Model`` and ``with`` do that themselves."""
        self._end(None)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # Model.fit leaves its callbacks after each evaluation too, in the middle of the training.
        if error is not None or not self._in_model:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._in_model = False
        if self._unfinished:
            self._write(End(error=None if error is None else f"{type(error).__name__}: {error}"[:_ERROR_CHARS]))
            self._unfinished = False
        if self._log is not None:
            self._log.close()
        for writer in self._writers:
            with self._surviving(type(writer).__name__, Exception):
                writer.close()

    def _start(self, network: Any, params: Any) -> None:
        """Once: find the cell, write the header. Later: nothing, if it is the same cell."""
        if not isinstance(network, nn.Cell):
            raise TypeError(f"BoostMonitor: the training cell must be a Cell, got {type(network).__name__}")
        cell = training_cell(network)
        target = network if cell is None else cell
        if self._target is not None:
            if target is not self._target:
                raise ValueError(
                    f"BoostMonitor: the training cell must be the one that the log was begun with, a "
                    f"{type(self._target).__name__}, got another {type(target).__name__}; give it a monitor of its own"
                )
            return
        if cell is None:
            if self._instrument:
                raise ValueError(
                    f"BoostMonitor: instrument needs a training cell of boost_ext, got {type(network).__name__}"
                )
            warnings.warn(
                f"BoostMonitor: {type(network).__name__} is no training cell of boost_ext; little but its loss and the "
                "time of its steps can be recorded",
                stacklevel=3,
            )
        if self._path is not None or self._writers:
            header = header_of(target, params, observed=cell is not None)
            header = header.model_copy(
                update={"name": self._name, "rank": self._rank, "ranks": self._ranks, "every": self._every}
            )
            if self._path is not None and self._resume is None and self._path.exists():
                self._keep_old_log(self._path)
            for writer in self._writers:
                writer.write(header)
            if self._path is not None:
                self._log = MonitorLog(self._path, header, resume=self._resume is not None, surviving=self._surviving)
            for evaluation in self._early:
                self._write(evaluation)
            self._early.clear()
            self._unfinished = True
        self._target, self._cell = target, cell
        if self._health is not None:
            self._weights = {w.name: w for w in weights_of(target) if w.dtype in _LOOKED_AT}
        self._optimizer = params.get("optimizer", getattr(target, "optimizer", None))
        self._started = time.perf_counter()
        if self._resume is None:
            self._step = self._printed = params.get("cur_step_num", 0)

    def _keep_old_log(self, path: Path) -> None:
        try:
            kept = keep(path)
        except ValueError as error:
            raise FileExistsError(
                f"BoostMonitor: path must be a new file or a run log, got {path}, which is neither; give another path"
            ) from error
        self._say(f"BoostMonitor: {path} was there already, and is now {kept}")

    def _take(self, outputs: Any, steps: int, epoch: int | None, seconds: float | None) -> None:
        before, self._step, self._epoch = self._step, self._step + steps, epoch
        overflow = overflow_of(outputs)
        due = not self._recorded or self._step // self._every > before // self._every
        loss = loss_of(outputs) if due or overflow else None  # reading it waits for the step
        now = time.perf_counter()
        if seconds is None and self._began is not None:
            seconds = now - self._began
        if seconds is not None:
            self._seconds, self._timed = self._seconds + seconds, self._timed + steps
        if not (due or overflow):
            return
        if loss is None and not self._recorded:
            what = type(outputs).__name__
            warnings.warn(f"BoostMonitor: no loss is recorded, since the training cell returns {what}", stacklevel=3)
        known = {"loss_scale": scale_of(outputs)} if self._cell is None else self._observe()
        if overflow is not None or self._cell is None:  # of all ranks, where the cell tells of its own
            known["overflow"] = overflow
        step = Step(
            step=self._step,
            epoch=epoch,
            loss=loss,
            learning_rates=learning_rates(self._optimizer) or None,
            seconds=self._seconds / self._timed if self._timed else None,
            elapsed=now - self._started,
            **known,
        )
        self._seconds, self._timed, self._recorded = 0.0, 0, True
        self._write(step)
        self._summarize(step.step, step.scalars())
        if self._per_print_steps:
            self._print(step)

    def _watch(self, network: Any) -> None:
        """On all ranks, also where this monitor records nothing: statistics have an all-reduce."""
        if self._health is not None and (cell := training_cell(network)) is not None:
            cell.watch(True)

    def _look(self, outputs: Any) -> None:
        if self._health is None:
            return
        overflow = bool(overflow_of(outputs))
        looks = overflow or self._health.due(self._step)
        cell = self._cell if looks else None
        health = self._health.check(
            self._step,
            gradients=None if cell is None else cell.gradient_statistics(),
            weights=self._weights,
            loss=loss_of(outputs) if looks else None,
            overflow=overflow,
            elsewhere=() if cell is None else cell.gradient_faults(),
        )
        if health is None:
            return
        self._write(health)
        self._summarize(health.step, health.scalars())
        if self._per_print_steps and (health.fault or health.dead or health.exploding):
            self._say(health.line())

    def _observe(self) -> dict[str, Any]:
        seen = dict(self._cell.observe())
        del seen["step"]  # other than ours if the cell was used before, or inside another graph
        seen["slots"] = seen.pop("seconds")
        seen["overflowed"] = seen["overflowed"] or None
        return seen

    def _write(self, record: Record) -> None:
        if self._log is not None:
            self._log.write(record)
        for writer in self._writers:
            with self._surviving(type(writer).__name__, Exception):
                writer.write(record)
        self._unfinished = bool(self._log or self._writers)

    def _summarize(self, step: int, scalars: Mapping[str, float]) -> None:
        if self._summary is None:
            return
        with self._surviving("the summary"):
            for name, value in scalars.items():
                self._summary.add_value("scalar", f"boost/{name}", Tensor(value, ms.float32))
            self._summary.record(step)

    def _say(self, line: str) -> None:
        with self._surviving("the console"):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _print(self, step: Step) -> None:
        if step.overflow:
            self._overflows, self._last_overflow = self._overflows + 1, step
        if step.step // self._per_print_steps > self._printed // self._per_print_steps:
            self._say(step.line(self._overflows, self._last_overflow))
            self._printed, self._overflows = step.step, 0


def _check_int(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"BoostMonitor: {name} must be an int, got {type(value).__name__}")
    if value < low:
        raise ValueError(f"BoostMonitor: {name} must be at least {low}, got {value}")
