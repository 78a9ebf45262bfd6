"""Files of a training on several ranks, one for each rank and step, of which all ranks load the same step."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from mindspore.communication import get_rank

from boost_ext.ms.core.resume import load_training_state, save_training_state
from boost_ext.ms.ranks.ranks import ALONE, Ranks, exchange, rank_count

__all__ = ["load_rank_state", "save_rank_state"]

_SHOWN = 8  # of the steps that a rank has, the newest


def _world() -> Ranks:
    return Ranks(get_rank(), rank_count(), True) if rank_count() > 1 else ALONE


def _files(folder: Path, rank: int) -> dict[int, Path]:
    """Those of a rank by step, the newest first."""
    named = [
        (re.fullmatch(rf"rank{rank}-(\d{{1,9}})\.ckpt", path.name), path) for path in folder.glob(f"rank{rank}-*.ckpt")
    ]
    return dict(sorted(((int(match[1]), path) for match, path in named if match), reverse=True))


def save_rank_state(cell: Any, folder: str | os.PathLike[str], *, keep: int = 2) -> None:
    """Save this rank's state as ``folder/rank<rank>-<steps made>.ckpt``, and remove its files but for the last `keep`.

    All ranks must call it after the same steps. A rank that ends after a step and before its save leaves the others one
    file ahead: two are kept so that there is a step that all of them have.

    Args:
        cell (BoostTrainOneStepCell): the training cell.
        folder (str): made if it is missing; one that all ranks share, or one of each machine.
        keep (int, optional): how many files are kept, >= 2. Default: 2.

    Raises:
        ValueError: for `keep` < 2.
        OSError: if the file cannot be written. The ones before are still there.

    Examples:
        >>> import os
        >>> from mindspore import nn
        >>> from boost_ext.boost import BoostTrainOneStepCell
        >>> from boost_ext.distributed import save_rank_state
        >>> net = nn.Dense(4, 1)
        >>> step = BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
        >>> save_rank_state(step, "states")
        >>> os.listdir("states")
        ['rank0-0.ckpt']
    """
    if keep < 2:  # no rank is more than one save ahead of another: the next step needs all of them
        raise ValueError(f"save_rank_state: keep must be >= 2, got {keep}")
    folder, rank, step = Path(folder), _world().rank, int(cell.steps_made)
    folder.mkdir(parents=True, exist_ok=True)
    save_training_state(cell, folder / f"rank{rank}-{step}.ckpt")
    for older in [path for made, path in _files(folder, rank).items() if made <= step][keep:]:
        older.unlink()


def load_rank_state(cell: Any, folder: str | os.PathLike[str]) -> int:
    """Go on from the newest step of which every rank has a whole file. All ranks must call it.

    Files of later steps are removed then: some ranks do not have them, and this training will make them again.

    Args:
        cell (BoostTrainOneStepCell): made with the same arguments as the one that was saved.
        folder (str): of :func:`save_rank_state`.

    Returns:
        int, the number of steps made; 0 if no rank has a file: nothing has changed then.

    Raises:
        ValueError: on every rank, if there are files but no step of which all ranks have one that fits the cell and is
            whole. Ranks may have loaded different steps then.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.boost import BoostTrainOneStepCell
        >>> from boost_ext.distributed import load_rank_state
        >>> net = nn.Dense(4, 1)
        >>> step = BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
        >>> load_rank_state(step, "rank_states")  # nothing there: steps made before
        0
    """
    folder, ranks = Path(folder), _world()
    files = _files(folder, ranks.rank)
    held = _of_all([*files, *[-1] * _SHOWN][:_SHOWN], ranks)
    if (held < 0).all():
        return 0
    common = sorted(set.intersection(*[set(row[row >= 0].tolist()) for row in held]), reverse=True)
    reasons = []
    for step in common:
        try:
            load_training_state(cell, files[step])
            reason = ""
        except (ValueError, OSError) as error:
            reason = str(error)
        failed = np.flatnonzero(_of_all([bool(reason)], ranks))
        if not len(failed):
            _remove_what_is_newer(folder, ranks.rank, step)
            return int(step)
        reasons.append(f"; step {step} failed on rank {failed[0]}" + (f", here: {reason}" if reason else ""))
    steps = ", ".join(f"rank {rank}: {row[row >= 0].tolist()}" for rank, row in enumerate(held))
    raise ValueError(
        f"load_rank_state: folder must hold a step that all ranks have, got {str(folder)!r} with {steps}"
        f"{''.join(reasons)}"
    )


def _of_all(values: list[Any], ranks: Ranks) -> np.ndarray[Any, Any]:
    return np.asarray([values], np.int32) if ranks.size == 1 else exchange(values, ranks)


def _remove_what_is_newer(folder: Path, rank: int, step: int) -> None:
    for newer in [path for made, path in _files(folder, rank).items() if made > step]:
        newer.unlink()
