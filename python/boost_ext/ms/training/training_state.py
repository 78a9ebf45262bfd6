"""A callback that saves a training of mindspore.Model and resumes it, to the bit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.communication import get_rank
from mindspore.dataset import config as data_config
from mindspore.dataset.engine import iterators
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from boost_ext.arguments import checked_keywords
from boost_ext.ms.core import typed
from boost_ext.ms.core.cell_tree import training_cell
from boost_ext.ms.ranks.rank_states import load_rank_state, save_rank_state
from boost_ext.ms.ranks.ranks import rank_count

__all__ = ["TrainingState"]

_NAME = "TrainingState"
_PLACE = "boost_ext.model"
# What callbacks of MindSpore count, which have no state_dict.
_COUNTERS = {
    "EarlyStopping": ("wait", "stopped_epoch", "best"),
    "ReduceLROnPlateau": ("wait", "cooldown_counter", "best"),
    "ModelCheckpoint": ("_last_triggered_step",),
}


class _Place(BaseModel):
    """Where a training of Model stands, beside the state of its cell."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    made: int = Field(ge=1)
    batches: int = Field(ge=1)
    seed: int
    stopped: bool
    callbacks: dict[str, dict[str, Any]]


class _PlacedCell:
    """A training cell with its place; save_rank_state and load_rank_state accept it as a cell."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell
        self.place: _Place | None = None
        self.loaded: dict[str, Tensor] = {}

    @property
    def steps_made(self) -> int:
        return int(self.cell.steps_made)

    def state_dict(self) -> dict[str, Tensor]:
        assert self.place is not None
        place = np.frombuffer(json.dumps(self.place.model_dump()).encode(), np.uint8).copy()  # pydantic loses inf
        return {**self.cell.state_dict(), _PLACE: Tensor(place)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        rest = dict(state)
        if _PLACE not in rest:
            raise ValueError(f"{_NAME}: folder must hold states that a {_NAME} has saved, got one without its place")
        try:
            place = _Place.model_validate(json.loads(rest.pop(_PLACE).asnumpy().tobytes()))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{_NAME}: folder must hold states that a {_NAME} has saved, got {error}") from error
        self.cell.load_state_dict(rest)
        self.place, self.loaded = place, rest


class _Finished(Exception):
    """Nothing is left to train: ends ``Model.train`` before its first step, and goes no further than the callback."""


class TrainingState(typed.Callback):
    r"""Saves a training of ``Model``, and resumes it: the same bits as without the interruption.

    The same script, started again, continues after the last saved step: weights, optimizer, loss scale and random
    state, the step and epoch numbers that callbacks see, and the place in the dataset. Batches that were seen are not
    trained again. A training that is complete trains nothing. docs/resume.md has the conditions for the script.

    For ``train`` and ``fit`` of ``mindspore.Model`` and :class:`boost_ext.Model`, with a training cell of boost_ext.
    It must be the first callback. On several ranks each has files of its own, as :func:`save_rank_state` writes them.

    Args:
        folder (Union[str, Path]): of the files, made if it is missing. One for each call of ``train`` or ``fit``.
        every (int, optional): steps between two files. The end of the training is always saved. Default: 100.
        resume (bool, optional): continue from the newest file. False: start anew, in a folder without files.
            Default: True.
        keep (int, optional): how many files are kept, >= 2. Default: 2.
        exact (bool, optional): random augmentations continue too: the seen samples pass through the dataset's
            operations again, not through the network. False: the order of the samples alone continues, which takes no
            time. Default: True.
        console (Console, optional): of rich, where to print. Default: None, the standard output.

    Raises:
        TypeError: for an argument of another type; at the start, if the training cell is none of boost_ext.
        ValueError: for `every` < 1 or `keep` < 2. At the start: if it is not the first callback, or is used a second
            time; if the files are of another training, dataset or seed; without `resume`, if there are files.
        OSError: if a file cannot be written. The ones before are still there.

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from mindspore import nn
        >>> from boost_ext import Model
        >>> from boost_ext.callbacks import TrainingState
        >>> ms.set_seed(0)
        >>> data = {"x": np.ones((8, 4), np.float32), "y": np.ones((8, 1), np.float32)}
        >>> dataset, net = ms.dataset.NumpySlicesDataset(data).batch(4), nn.Dense(4, 1)
        >>> model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
        >>> model.train(10, dataset, callbacks=[TrainingState("states", every=10)])
    """

    @checked_keywords
    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int = 100,
        resume: bool = True,
        keep: int = 2,
        exact: bool = True,
        console: Console | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"{_NAME}: folder must be a str or a Path, got {type(folder).__name__}")
        for name, number, low in (("every", every, 1), ("keep", keep, 2)):
            if isinstance(number, bool) or not isinstance(number, int):
                raise TypeError(f"{_NAME}: {name} must be an int, got {type(number).__name__}")
            if number < low:
                raise ValueError(f"{_NAME}: {name} must be >= {low}, got {number}")
        for name, flag in (("resume", resume), ("exact", exact)):
            if not isinstance(flag, bool):
                raise TypeError(f"{_NAME}: {name} must be a bool, got {type(flag).__name__}")
        self._folder, self._every, self._resume, self._keep, self._exact = Path(folder), every, resume, keep, exact
        self._console = console or Console()
        self._cell: _PlacedCell | None = None
        self._made = self._saved = 0
        """Steps of this training: made, and in the newest file."""
        self._batches = self._total = self._epochs_before = self._epochs_left = 0
        self._pending = self._ended = self._stopped = False
        self._others: list[ms.Callback] = []

    def on_train_begin(self, run_context: Any) -> None:
        """Load the newest state, if there is one, and move the dataset to its place."""
        params = run_context.original_args()
        if self._cell is not None:
            raise ValueError(
                f"{_NAME}: folder must be that of one training, got a second one; give it another callback"
            )
        cell = training_cell(params.train_network)
        if cell is None:
            got = type(params.train_network).__name__
            raise TypeError(f"{_NAME}: the training cell must be one of boost_ext, got {got}; use boost_ext.Model")
        listed = [callback for callback in params.list_callback if not type(callback).__name__.startswith("_")]
        if listed[0] is not self:
            raise ValueError(f"{_NAME}: it must be the first callback, got {type(listed[0]).__name__} before it")
        self._others = listed[1:]
        self._cell, self._batches, self._epochs_left = _PlacedCell(cell), params.batch_num, params.epoch_num
        self._total = self._batches * self._epochs_left
        if not self._resume:
            if found := sorted(self._folder.glob("rank*.ckpt")):
                raise ValueError(f"{_NAME}: folder must hold no states with resume=False, got {str(found[0])!r}")
        elif load_rank_state(self._cell, self._folder):
            self._go_on(params)
            return
        if params.train_dataset.is_shuffled() and not _seeded():
            self._print("the dataset is shuffled: without mindspore.set_seed a resumed run sees another order")

    def _go_on(self, params: Any) -> None:
        assert self._cell is not None
        place = self._cell.place
        assert place is not None
        if place.batches != self._batches:
            raise ValueError(
                f"{_NAME}: train_dataset must have {place.batches} batches, as in the training that was saved, got "
                f"{self._batches}"
            )
        if place.seed != data_config.get_seed():
            raise ValueError(
                f"{_NAME}: the seed of the dataset (mindspore.set_seed) must be {place.seed}, that of the training "
                f"that was saved, got {data_config.get_seed()}"
            )
        self._made = self._saved = params.cur_step_num = made = place.made
        if place.stopped or made >= self._total:
            _restore(self._others, place.callbacks)
            self._print(f"complete at step {made}: nothing to train")
            raise _Finished
        self._epochs_before, inside = divmod(made, self._batches)
        self._epochs_left -= self._epochs_before
        self._pending = True
        _move(params.train_dataset, made, params.dataset_sink_mode, self._exact)
        self._print(f"resumed at step {made} of {self._total}, after {inside} of {self._batches} batches of its epoch")

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Number the epoch. Between two epochs it is here that the state is saved or loaded."""
        run_context.original_args().cur_epoch_num += self._epochs_before
        if self._made % self._batches == 0:
            self._between_steps()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Save or load the state of the step before, of which all callbacks have heard by now."""
        self._between_steps()

    def on_train_step_end(self, run_context: Any) -> None:
        """Count. A data sink makes many steps in one call."""
        self._made = run_context.original_args().cur_step_num

    def on_train_epoch_end(self, run_context: Any) -> None:
        """Stop after the last epoch: MindSpore counts the epochs of this process."""
        self._epochs_left -= 1
        if self._epochs_left == 0 and self._epochs_before:
            run_context.request_stop()

    def on_train_end(self, run_context: Any) -> None:
        """Note that the training is complete; it is saved after the other callbacks have ended."""
        self._ended, self._stopped = True, self._made < self._total

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if self._ended and error is None:
            self._ended = False
            self._save()
        return isinstance(error, _Finished)

    def _between_steps(self) -> None:
        assert self._cell is not None
        if self._pending:
            # Again, and here: callbacks before it have begun the training, and the epoch, once more.
            self._pending = False
            self._cell.cell.load_state_dict(self._cell.loaded)
            assert self._cell.place is not None
            _restore(self._others, self._cell.place.callbacks)
        elif self._made // self._every > self._saved // self._every:
            self._save()

    def _save(self) -> None:
        assert self._cell is not None
        self._cell.place = _Place(
            made=self._made,
            batches=self._batches,
            seed=data_config.get_seed(),
            stopped=self._stopped,
            callbacks=_counted(self._others),
        )
        save_rank_state(self._cell, self._folder, keep=self._keep)
        self._saved = self._made

    def _print(self, text: str) -> None:
        if rank_count() == 1 or get_rank() == 0:
            self._console.print(f"{_NAME}: {text} ({self._folder})", markup=False, highlight=False, soft_wrap=True)


_UNSEEDED = 5489  # MindSpore draws a seed of its own for each dataset then


def _seeded() -> bool:
    return int(data_config.get_seed()) != _UNSEEDED


def _move(dataset: Any, step: int, sink: bool, exact: bool) -> None:
    """Let the dataset begin at this batch. Without a sink its iterator is there already."""
    fast = data_config.get_fast_recovery()
    data_config.set_fast_recovery(not exact)
    try:
        if sink:
            dataset.set_init_step(step)
            return
        found = [
            i for ref in iterators.ITERATORS_LIST if (i := ref()) and vars(i).get("_Iterator__ori_dataset") is dataset
        ]
        if not found:
            raise TypeError(f"{_NAME}: train_dataset must be a mindspore.dataset, got {type(dataset).__name__}")
        found[-1]._reset(step, dataset.get_dataset_size())
    finally:
        if not sink:  # whose pipeline is made after this
            data_config.set_fast_recovery(fast)


def _named(callbacks: list[ms.Callback]) -> Iterator[tuple[str, ms.Callback]]:
    seen: dict[str, int] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        seen[kind] = seen.get(kind, 0) + 1
        yield f"{kind}.{seen[kind]}", callback


def _counted(callbacks: list[ms.Callback]) -> dict[str, dict[str, Any]]:
    """The counts of callbacks: their ``state_dict()``, or the attributes of those of MindSpore."""
    found = {}
    for name, callback in _named(callbacks):
        if callable(getattr(callback, "load_state_dict", None)):
            found[name] = json.loads(json.dumps(callback.state_dict()))
        elif attributes := _COUNTERS.get(type(callback).__name__):
            found[name] = {a: _number(getattr(callback, a)) for a in attributes if hasattr(callback, a)}
    return found


def _restore(callbacks: list[ms.Callback], counted: Mapping[str, dict[str, Any]]) -> None:
    for name, callback in _named(callbacks):
        if name not in counted:
            continue
        if callable(getattr(callback, "load_state_dict", None)):
            callback.load_state_dict(counted[name])
        else:
            for attribute in _COUNTERS.get(type(callback).__name__, ()):
                value, dtype = counted[name].get(attribute, (None, None))
                if value is not None:
                    setattr(callback, attribute, value if dtype is None else np.dtype(dtype).type(value))


def _number(value: Any) -> tuple[Any, str | None]:
    """As JSON, with its dtype, which decides what it compares equal to."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.reshape(-1)[0].item(), value.dtype.name
    return value, None
