"""The state of a training: everything that moves, so that 50 + 50 steps are the bits of 100 steps."""

from __future__ import annotations

import os
import re
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from boost_ext.files import replacing
from boost_ext.ms.core import state_file
from boost_ext.ms.core.randomness import random_parts

__all__ = [
    "checksum",
    "constants_of",
    "is_scratch",
    "load_state",
    "load_training_state",
    "moving_of",
    "read",
    "save_training_state",
    "state_of",
    "write",
]

_MATRIX = ("dim_reduce.pca_mat", "dim_reduce.pca_mat_scale")
# Written before they are read in every step; and the matrix, which has its file.
_SCRATCH = {*_MATRIX, "dim_reduce.gk", "dim_reduce.gk_own", "dim_reduce.dk", "dim_reduce.slope", "dim_reduce.bk_next"}
_SCRATCH_LISTS = tuple(f"dim_reduce.{name}." for name in ("weights_clone", "statistics_clone", "dn", "grad_proj"))
_SCRATCH_LISTS += ("adasum.old.", "adasum.vector.")
_SCRATCH |= {"boost.last", "dim_reduce.failed_searches"}  # for observe() alone; older states still load
_SCRATCH_OF_GUARDS = re.compile(r"(.*\.)?guard(\.\d+)?\.(finiteness|stamps|statistics|faults)")
_STEPS, _RANDOM = "boost.steps", "boost_ext.random_state"
_OLD_STEPS = "boost_ext.step"  # of files from before it was a Parameter
_CONSTANT = "boost_ext.constant."


def is_scratch(name: str) -> bool:
    """Whether a Parameter of this name is written before it is read in every step, or kept in a file of its own."""
    return name in _SCRATCH or name.startswith(_SCRATCH_LISTS) or _SCRATCH_OF_GUARDS.fullmatch(name) is not None


def moving_of(cell: Any) -> dict[str, Parameter]:
    """The Parameters of a training cell that a step reads before it writes them, by name."""
    found: dict[str, Parameter] = {}
    for parameter in cell.get_parameters():
        if is_scratch(parameter.name):
            continue
        known = found.setdefault(parameter.name, parameter)
        if known is not parameter:
            raise ValueError(f"state_dict: two parameters have the name {parameter.name!r}; give each its own")
    return found


def checksum(arrays: Iterable[Any]) -> int:
    """Of the bytes of all of them, one after the other."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, total)
    return total


def constants_of(cell: Any) -> dict[str, int]:
    """Checksums of the constants of a training, from the arguments of the cell; they must be the same again."""
    constants = {"accumulation_steps": 1 if cell.accumulation is None else cell.accumulation.max_accumulation_step}
    if cell.freeze:
        constants["freeze_schedule"] = checksum([np.asarray(cell.optimizer.schedule, np.int32)])
    if matrix := [p.asnumpy() for p in cell.get_parameters() if p.name in _MATRIX]:
        constants["pca_matrix"] = checksum(matrix)
    constants |= getattr(cell.optimizer, "constants", {})  # of TrainableWeightAveraging: what its weights are made of
    return {_CONSTANT + name: value for name, value in constants.items()}


def _warn_of_randomness(cell: Any) -> None:
    names = list(random_parts(cell.network))
    if names:
        warnings.warn(
            f"state_dict: {_some(names)} draws from a random state that MindSpore keeps inside its kernel, where "
            "nothing can read it; a resumed training is right, but its dropout masks and other random numbers are "
            "others than without the interruption. boost.replace_dropout(network) gives dropout layers a state that is "
            "saved",
            stacklevel=4,
        )


def state_of(cell: Any) -> dict[str, Tensor]:
    """See ``BoostTrainOneStepCell.state_dict``."""
    _warn_of_randomness(cell)
    state = {name: read(p) for name, p in moving_of(cell).items()}
    state |= {name: Tensor(value, ms.int64) for name, value in constants_of(cell).items()}
    state[_RANDOM] = ms.get_rng_state()
    return state


def load_state(cell: Any, state: Mapping[str, Any]) -> None:
    """Write a state into the cell. Checks everything before it writes anything."""
    owner = "load_state_dict"
    if not isinstance(state, Mapping):
        raise TypeError(f"{owner}: state must be a dict, got {type(state).__name__}")
    if _OLD_STEPS in state and _STEPS not in state:
        state = dict(state)
        state[_STEPS] = Tensor(state.pop(_OLD_STEPS).asnumpy().reshape(1), ms.int32)
    parameters, constants = moving_of(cell), constants_of(cell)
    expected = {*parameters, *constants, _RANDOM}
    missing, unknown = sorted(expected - set(state)), sorted(set(state) - expected)
    if missing or unknown:
        raise ValueError(
            f"{owner}: state must be of a cell made with the same arguments; missing: {_some(missing)}, "
            f"not known here: {_some(unknown)}"
        )
    for name, value in constants.items():
        if int(state[name].asnumpy()) != value:
            what = name.removeprefix(_CONSTANT).replace("_", " ")
            raise ValueError(f"{owner}: the {what} must be that of the state, but it is another one")
    for name, parameter in parameters.items():
        value = state[name]
        alike = value.size == parameter.size == 1 or tuple(value.shape) == tuple(parameter.shape)
        if not alike or value.dtype != parameter.dtype:
            raise ValueError(
                f"{owner}: {name} must be {parameter.dtype} {tuple(parameter.shape)}, "
                f"got {value.dtype} {tuple(value.shape)}"
            )
    for name, parameter in parameters.items():
        write(parameter, Tensor(state[name]).reshape(parameter.shape))  # older files: a count was (1,) or ()
    ms.set_rng_state(Tensor(state[_RANDOM]))


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}" if names else "nothing"


def read(parameter: Parameter) -> Tensor:
    """A copy of a Parameter's value."""
    if parameter.dtype == ms.bfloat16:  # which Identity, in value(), does not know on a CPU
        return Tensor(parameter.asnumpy().astype(np.float32)).astype(ms.bfloat16)
    return parameter.value().copy()


def write(parameter: Parameter, value: Tensor) -> None:
    """Set a Parameter's value, for compiled graphs too."""
    if parameter.dtype == ms.bfloat16:  # which Assign does not know on a CPU
        parameter.set_data(Tensor(value.astype(ms.float32).asnumpy()).astype(ms.bfloat16))  # and set_data would share
    else:  # not set_data: it moves the storage, which a graph that ms.jit has compiled does not notice
        ops.assign(parameter, value)


def save_training_state(cell: Any, path: str | os.PathLike[str]) -> None:
    """Save everything that moves in a training, as a MindSpore checkpoint with a checksum at its end.

    Written beside `path`, synced and renamed, so that `path` is always either the old file or the new one.

    Args:
        cell (BoostTrainOneStepCell): the training cell.
        path (str): ends in ``.ckpt``.

    Raises:
        ValueError: if `path` does not end in ``.ckpt``.
        OSError: the disk. The old file is still there then.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext.boost import BoostTrainOneStepCell
        >>> from boost_ext.checkpoint import save_training_state
        >>> net = nn.Dense(4, 1)
        >>> step = BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
        >>> loss, overflow, loss_scale = step(ms.ops.ones((2, 4)), ms.ops.ones((2, 1)))
        >>> save_training_state(step, "state.ckpt")
    """
    target = Path(path)
    if target.suffix != ".ckpt":
        raise ValueError(f"save_training_state: path must end in .ckpt, got {str(path)!r}")
    entries = [{"name": name, "data": value} for name, value in cell.state_dict().items()]
    with replacing(target) as part:
        ms.save_checkpoint(entries, str(part))
        os.chmod(part, 0o644)  # MindSpore leaves it read-only
        state_file.seal(part)


def load_training_state(cell: Any, path: str | os.PathLike[str]) -> None:
    """Continue from a file of :func:`save_training_state`.

    Args:
        cell (BoostTrainOneStepCell): made with the same arguments as the one that was saved.
        path (str): the file.

    Raises:
        ValueError: if the file is of another training, or damaged: its checksum is verified before anything else.
            Nothing has changed then.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.boost import BoostTrainOneStepCell
        >>> from boost_ext.checkpoint import load_training_state, save_training_state
        >>> net = nn.Dense(4, 1)
        >>> step = BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
        >>> save_training_state(step, "state.ckpt")
        >>> load_training_state(step, "state.ckpt")  # in another process, too
        >>> step.steps_made
        0
    """
    if not Path(path).is_file():
        raise ValueError(f"load_training_state: path must be a file, got {str(path)!r}")
    state_file.verify("load_training_state", Path(path))
    try:
        state = ms.load_checkpoint(str(path))
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"load_training_state: path must be a complete checkpoint, got {str(path)!r}: {reason}"
        ) from error
    cell.load_state_dict(state)
