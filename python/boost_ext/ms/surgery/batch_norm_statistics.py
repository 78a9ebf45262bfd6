"""The moving statistics of batch norms, computed for given weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.nn.layer.normalization import _BatchNorm

from boost_ext.ms.core.resume import write

__all__ = ["statistics_of", "update_batch_norm"]

_OWNER = "update_batch_norm"


def update_batch_norm(network: nn.Cell, dataset: Iterable[Any], *, inputs: int = 1) -> int:
    """Set the moving statistics of all batch norms to their means over a dataset, by forward passes.

    Needed after weights were averaged: the statistics belong to the weights before. Each batch has the same weight, as
    in ``torch.optim.swa_utils.update_bn``. Weights, and the training or evaluation mode of each cell, do not change. If
    something fails, the statistics are the old ones.

    A batch norm must run at most once in a forward pass. One that does not run keeps its statistics, and so do those of
    ``mindspore.mint``. Each rank uses its own data (except for SyncBatchNorm).

    Args:
        network (Cell): with or without its loss.
        dataset (Iterable): a MindSpore dataset, or batches: each a Tensor or array, or a tuple of them.
        inputs (int): the number of first columns of a batch that the network takes. Default: 1, without labels.

    Returns:
        int, the number of batch norms with new statistics. If there are none, the dataset is not read.

    Raises:
        TypeError: if an argument has another type.
        ValueError: if `inputs` is less than 1 or more than a batch has, the dataset is empty, statistics are not
            finite, or a batch norm has momentum 1 and never changes.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext import boost
        >>> net = nn.SequentialCell(nn.BatchNorm1d(2), nn.Dense(2, 1))
        >>> boost.update_batch_norm(net, [ms.Tensor([[0.0, 1.0], [2.0, 5.0]]), ms.Tensor([[2.0, 1.0], [4.0, 5.0]])])
        1
        >>> print(net[0].moving_mean.asnumpy())
        [2. 3.]
    """
    if not isinstance(network, nn.Cell):
        raise TypeError(f"{_OWNER}: network must be a Cell, got {type(network).__name__}")
    if isinstance(inputs, bool) or not isinstance(inputs, int):
        raise TypeError(f"{_OWNER}: inputs must be an int, got {type(inputs).__name__}")
    if inputs < 1:
        raise ValueError(f"{_OWNER}: inputs must be >= 1, got {inputs}")
    norms = [cell for _, cell in network.cells_and_names() if _gathers(cell)]
    if not norms:
        return 0
    statistics = statistics_of(norms)
    before = [p.asnumpy().copy() for p in statistics]
    flags = [(cell, cell.training) for _, cell in network.cells_and_names()]
    after = before
    network.set_train(True)
    try:
        after = _means(network, _batches(dataset), inputs, norms, before)
    finally:
        for p, values in zip(statistics, after, strict=True):
            write(p, Tensor(values, p.dtype))
        for cell, training in flags:  # a cell comes before those in it
            if cell is network or cell.training != training:
                cell.set_train(training)
    return sum(new is not old for new, old in zip(after, before, strict=True)) // 2


def statistics_of(norms: Iterable[Any]) -> list[Parameter]:
    """Mean and variance of each of the batch norms, in their order."""
    return [p for cell in norms for p in (cell.moving_mean, cell.moving_variance)]


def _gathers(cell: nn.Cell) -> bool:
    if not isinstance(cell, _BatchNorm) or cell.use_batch_statistics is False:
        return False
    if cell.momentum == 0:  # which MindSpore keeps as 1 - momentum
        raise ValueError(
            f"{_OWNER}: {cell.moving_mean.name} must have a momentum below 1, got 1, which lets nothing in"
        )
    return True


def _batches(dataset: Any) -> Iterable[Any]:
    if hasattr(dataset, "create_tuple_iterator"):
        return dataset.create_tuple_iterator(num_epochs=1)  # type: ignore[no-any-return]
    if not isinstance(dataset, Iterable):
        raise TypeError(f"{_OWNER}: dataset must be a dataset or batches, got {type(dataset).__name__}")
    return dataset


def _columns(batch: Any, inputs: int) -> list[Tensor]:
    columns = list(batch) if isinstance(batch, (tuple, list)) else [batch]
    if len(columns) < inputs:
        raise ValueError(f"{_OWNER}: inputs must be at most the columns of a batch, got {inputs} of {len(columns)}")
    return [c if isinstance(c, Tensor) else Tensor(c) for c in columns[:inputs]]


def _means(
    network: nn.Cell, batches: Iterable[Any], inputs: int, norms: Sequence[Any], before: Sequence[Any]
) -> list[Any]:
    """Mean and variance of each norm over the batches; those of `before` where it did not run."""
    statistics = statistics_of(norms)
    # A pass adds this share of the statistics of a batch to the moving ones, which are 0 here.
    shares = [float(np.float32(cell.momentum)) for cell in norms for _ in range(2)]
    zeros = [np.zeros_like(old) for old in before]
    sums = [np.zeros(old.shape) for old in before]
    count = 0
    for batch in batches:
        for p, zero in zip(statistics, zeros, strict=True):
            write(p, Tensor(zero, p.dtype))
        network(*_columns(batch, inputs))
        for total, p, share in zip(sums, statistics, shares, strict=True):
            total += p.asnumpy().astype(np.float64) / share
        count += 1
    if count == 0:
        raise ValueError(f"{_OWNER}: dataset must hold a batch at least, got none")
    means = [(total / count).astype(old.dtype) for total, old in zip(sums, before, strict=True)]
    for p, mean in zip(statistics, means, strict=True):
        if not np.isfinite(mean.astype(np.float32)).all():
            raise ValueError(f"{_OWNER}: {p.name} must stay finite, got inf or nan; the weights or the data are not")
    ran = [bool(sums[i].any() or sums[i + 1].any()) for i in range(0, len(sums), 2)]
    return [mean if ran[i // 2] else old for i, (mean, old) in enumerate(zip(means, before, strict=True))]
