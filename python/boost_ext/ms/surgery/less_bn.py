"""LessBN: residual networks with fewer batch norms.

The functions rewrite a network in place, before its optimizer is made; :class:`LessBN` calls them. See
:mod:`boost_ext.ms.surgery.residual` for the batch norms that are removed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mindspore import log, nn

from boost_ext.arguments import checked_keywords
from boost_ext.ms.core.cell_tree import cell_names, replace_cells
from boost_ext.ms.core.common_head import CommonHeadLastFN
from boost_ext.ms.surgery.dataflow import Flow
from boost_ext.ms.surgery.residual import NORMS, RemovedBatchNorm, find_inner_norms

__all__ = ["CommonHeadLastFN", "LessBN", "LessBNReport", "RemovedBatchNorm", "remove_batch_norms", "replace_head"]

HEAD_MULTIPLIER = 10.0
"""The first value of the multiplier of :func:`replace_head`; docs/less_bn.md has the measurement."""


@dataclass(frozen=True)
class LessBNReport:
    """The changes of LessBN to a network; a second call reports the same.

    Args:
        removed (tuple[str]): names of the removed batch norms.
        kept (tuple[str]): names of the other batch norms.
        head (str, optional): name of the layer that is now a :class:`CommonHeadLastFN`.
        removed_parameters (tuple[str]): names of the Parameters of the removed batch norms.
        notes (tuple[str]): cells that could not be analyzed, and changes that were not made, with reasons.
    """

    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    head: str | None = None
    removed_parameters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = len(self.removed)
        lines = [f"LessBN: {count} of {count + len(self.kept)} batch norms removed"]
        for title, names in (("removed", self.removed), ("kept", self.kept)):
            lines += [f"  {title}: {', '.join(names)}"] if names else []
        lines += [f"  head: {self.head} is a CommonHeadLastFN"] if self.head else []
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def remove_batch_norms(network: nn.Cell) -> LessBNReport:
    """Replace the inner batch norms of all residual branches by the identity, in place.

    Args:
        network (Cell): with or without its loss, before its optimizer and a training cell are made.

    Returns:
        LessBNReport.

    Raises:
        TypeError: if `network` is no Cell.
    """
    _check_network("remove_batch_norms", network)
    found = find_inner_norms(network)
    notes = list(found.notes)
    if not found.branches:
        notes.append("no residual branch found: nothing to remove")
    elif not found.norms:
        notes.append("no residual branch has an inner batch norm: nothing to remove")
    live = [n for n in found.norms if not isinstance(n, RemovedBatchNorm)]
    replace_cells(network, {id(norm): RemovedBatchNorm(norm) for norm in live})
    return _report(network, notes)


def replace_head(network: nn.Cell, multiplier: float = HEAD_MULTIPLIER) -> LessBNReport:
    """Replace the last Dense of a network by a :class:`CommonHeadLastFN`, in place.

    The last is the one that runs last. If a cell with a Dense could not be analyzed, it is the last in the order of the
    cells, and the report has a note.

    Args:
        network (Cell): as for :func:`remove_batch_norms`.
        multiplier (float): its first value, > 0. Default: 10.0.

    Returns:
        LessBNReport, `head` is None if there is no Dense.

    Raises:
        TypeError: if `network` is no Cell.
        ValueError: if `multiplier` is not positive.
    """
    _check_network("replace_head", network)
    if not multiplier > 0:
        raise ValueError(f"replace_head: multiplier must be > 0, got {multiplier}")
    notes: list[str] = []
    last = _last_dense(network, find_inner_norms(network).flow, notes)
    if last is network:
        notes.append("the network is itself a Dense: there is no cell to replace it in")
    elif isinstance(last, nn.Dense):
        replace_cells(network, {id(last): CommonHeadLastFN.from_dense(last, multiplier)})
    elif last is None:
        notes.append("no Dense found: no head replaced")
    return _report(network, notes)


class LessBN(nn.Cell):
    r"""A network with fewer batch norms.

    Replaces ``mindspore.boost.LessBN``, and works in both modes. Each inner batch norm of a residual branch of
    `network` becomes a :class:`RemovedBatchNorm`, under the same name. Other cells and Parameters do not change.
    Rewrite the networks for training and for evaluation alike, and make the optimizer afterwards.

    Args:
        network (Cell): with or without its loss.
        fn_flag (bool): also replace the last Dense by a :class:`CommonHeadLastFN`. Default: False.

    Inputs:
        - **\*inputs** (tuple[Tensor]) - the network's inputs.

    Outputs:
        Those of the network.

    Attributes:
        report (LessBNReport): the changes; `removed`, `kept`, `head` and `notes` are its fields.

    Raises:
        TypeError: if `network` is no Cell or `fn_flag` no bool.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.ms.surgery.less_bn import LessBN
        >>> class Block(nn.Cell):
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...         self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3), nn.BatchNorm2d(channels)
        ...         self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3), nn.BatchNorm2d(channels)
        ...         self.relu = nn.ReLU()
        ...
        ...     def construct(self, x):
        ...         out = self.relu(self.bn1(self.conv1(x)))
        ...         return self.relu(self.bn2(self.conv2(out)) + x)
        >>> net = nn.SequentialCell(Block(8), Block(8))
        >>> print(LessBN(net).report)
        LessBN: 2 of 4 batch norms removed
          removed: 0.bn1, 1.bn1
          kept: 0.bn2, 1.bn2
    """

    @checked_keywords
    def __init__(self, network: nn.Cell, fn_flag: bool = False) -> None:
        super().__init__(auto_prefix=False)
        _check_network("LessBN", network)
        if not isinstance(fn_flag, bool):
            raise TypeError(f"LessBN: fn_flag must be a bool, got {type(fn_flag).__name__}")
        report = remove_batch_norms(network)
        if fn_flag:
            head = replace_head(network)
            report = replace(head, notes=tuple(dict.fromkeys((*report.notes, *head.notes))))
        log.info(str(report))
        self.network = network
        self.report = report
        self.removed, self.kept, self.head, self.notes = report.removed, report.kept, report.head, report.notes

    def construct(self, *inputs: Any) -> Any:
        return self.network(*inputs)


def _check_network(name: str, network: Any) -> None:
    if not isinstance(network, nn.Cell):
        raise TypeError(f"{name}: network must be a Cell, got {type(network).__name__}")


def _last_dense(network: nn.Cell, flow: Flow, notes: list[str]) -> nn.Cell | None:
    """The last Dense, or the head of an earlier call: a second call must not replace the layer before it."""
    layers = [c for _, c in network.cells_and_names() if isinstance(c, (nn.Dense, CommonHeadLastFN))]
    if any(isinstance(c, nn.Dense) for cell in flow.opaque for _, c in cell.cells_and_names()):
        notes.append("the order of the Dense layers is not known: the last in the order of the cells is the head")
        return layers[-1]
    run = [n.cell for n in flow.nodes if any(n.cell is layer for layer in layers)]
    return run[-1] if run else None


def _report(network: nn.Cell, notes: list[str]) -> LessBNReport:
    removed: list[str] = []
    kept: list[str] = []
    parameters: list[str] = []
    head: str | None = None
    names = cell_names(network)
    inside: set[int] = set()  # BatchNorm3d holds a BatchNorm2d
    for _, cell in network.cells_and_names():
        if isinstance(cell, NORMS) and id(cell) not in inside:
            kept.append(names[id(cell)])
            inside |= {id(c) for _, c in cell.cells_and_names()}
        elif isinstance(cell, RemovedBatchNorm):
            removed.append(names[id(cell)])
            parameters.extend(cell.parameter_names)
        elif isinstance(cell, CommonHeadLastFN):
            head = names[id(cell)]
    return LessBNReport(tuple(removed), tuple(kept), head, tuple(parameters), tuple(notes))
