"""Which batch norms lie inside residual branches: a rule on the data flow of a network.

A residual block is a sum or a difference of operands that come from a common origin. The part of an operand that the
other operands do not share is a **branch**. One operand is a shortcut:

* the origin itself; or
* another view of it without weights, or one convolution or Dense that changes channels or stride; then the other
  branches end in a batch norm, as those of a block do and those of two models side by side often do not.

No branch is long, and none lowers the resolution and raises it again, as an encoder with its decoder does.

A batch norm of a branch is **inner** if a convolution or Dense precedes it in that branch, and every path from its
output to the end of the branch passes another batch norm of the branch. Not inner are the last batch norms of branches,
those of shortcuts, and those before the first convolution of a branch.

Where blocks are nested, a batch norm must be inner in every branch that holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mindspore import mint, nn

from boost_ext.ms.core.cell_tree import cell_names
from boost_ext.ms.core.common_head import CommonHeadLastFN
from boost_ext.ms.surgery.dataflow import Flow, Kind, Node, trace

__all__ = ["LONGEST_BRANCH", "InnerNorms", "find_inner_norms"]

LONGEST_BRANCH = 8
"""The most convolutions and Dense in a row. A longer branch belongs to a skip connection over a part of the network
(U-Net, feature pyramid), which needs its batch norms."""

_MINT_NORMS = (mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, *_MINT_NORMS)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose)
_WEIGHTED = (*_CONVOLUTIONS, nn.Dense, nn.Linear, mint.nn.Conv2d, mint.nn.Conv3d)

_LARGER = re.compile(
    "conv.*transpose|transpose.*conv|deconv|backpropinput|upsampl|interpolat|resize|pixel_?shuffle|depth_?to_?space"
    "|unpool|grid_?sample|repeat_interleave",
    re.IGNORECASE,
)
"""Names of operations that enlarge a feature map."""
_ERRORS = {"Pow", "pow", "Square", "square", "Abs", "abs", "norm"}
"""Operations that follow a difference which is the error of a handwritten loss, not a block."""


class RemovedBatchNorm(nn.Cell):
    """The identity in place of a batch norm.

    Args:
        norm (Cell): the replaced batch norm; only its description is kept.

    Attributes:
        parameter_names (tuple[str]): of the batch norm.

    Inputs:
        - **x** (Tensor) - anything.

    Outputs:
        Tensor, `x`.
    """

    def __init__(self, norm: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.description = f"{type(norm).__name__}({norm.num_features})"
        self.parameter_names = tuple(p.name for p in norm.get_parameters())
        self.set_train(norm.training)

    def construct(self, x):  # type: ignore[no-untyped-def]
        return x

    def extend_repr(self) -> str:
        return self.description


@dataclass(frozen=True)
class InnerNorms:
    """``norms`` can be removed. ``branches``: whether any branch was found. ``flow``: the data flow of the network."""

    norms: tuple[nn.Cell, ...]
    branches: bool
    notes: tuple[str, ...]
    flow: Flow


def _own(cell: nn.Cell) -> bool:
    """Whether the construct of a cell is the library's."""
    return str(type(cell).construct.__module__).startswith("mindspore.")


def is_norm(cell: nn.Cell) -> bool:
    """Whether a cell is, or was, a batch norm, with the ``construct`` of the library."""
    return isinstance(cell, RemovedBatchNorm) or (isinstance(cell, NORMS) and _own(cell))


def _leaf(cell: nn.Cell) -> Kind | None:
    """The kind of node that a cell is; None: its ``construct`` is followed."""
    if is_norm(cell):
        return "norm"
    if isinstance(cell, NORMS):
        return "op"
    if isinstance(cell, CommonHeadLastFN) or (isinstance(cell, _WEIGHTED) and _own(cell)):
        return "weighted"
    if isinstance(cell, nn.LossBase):
        return "loss"
    if not type(cell).__module__.startswith("mindspore."):
        return None
    inside = [c for _, c in cell.cells_and_names() if c is not cell]
    plain = all(_own(c) and not is_norm(c) and not isinstance(c, _WEIGHTED) for c in inside)
    return "op" if plain else None


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Graph:
    """The nodes as sets of bits: bit i is node i."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.nodes = flow, flow.nodes
        self.ancestors: list[int] = []
        """Of each node, with itself."""
        self.users = [0] * len(self.nodes)
        for node in self.nodes:
            mask = 1 << node.index
            for source in node.inputs:
                mask |= self.ancestors[source.index]
                self.users[source.index] |= 1 << node.index
            self.ancestors.append(mask)
        for node in flow.outputs:
            self.users[node.index] |= 1 << len(self.nodes)
        self.of_kind = {
            kind: sum(1 << n.index for n in self.nodes if n.kind == kind) for kind in ("norm", "weighted", "loss")
        }

    def branches(self, join: Node) -> list[int]:
        """The branches that meet in an addition."""
        found = []
        for operand in join.inputs:
            others = 0
            for other in join.inputs:
                others |= 0 if other is operand else self.ancestors[other.index]
            own = self.ancestors[operand.index] & ~others
            # Without what comes from elsewhere: only descendants of the common origin are in the branch.
            found.append(sum(1 << i for i in _bits(own) if self.ancestors[i] & others))
            if not self.ancestors[operand.index] & others:
                return []
        return found

    def length(self, branch: int) -> int:
        """The largest number of convolutions in a row."""
        longest: dict[int, int] = {}
        for i in _bits(branch):
            before = max((longest.get(source.index, 0) for source in self.nodes[i].inputs), default=0)
            longest[i] = before + (self.nodes[i].kind == "weighted")
        return max(longest.values(), default=0)

    def of(self, mask: int) -> Iterator[Node]:
        return (self.nodes[i] for i in _bits(mask))

    def ends_in_norm(self, operand: Node, branch: int) -> bool:
        """Whether a way leads back from the operand to a batch norm, past no convolution or Dense."""
        pending, seen = [operand], 0
        while pending:
            node = pending.pop()
            if not 1 << node.index & branch & ~seen or node.kind == "weighted":
                continue
            if node.kind == "norm":
                return True
            seen |= 1 << node.index
            pending.extend(node.inputs)
        return False

    def is_error(self, join: Node) -> bool:
        users = self.users[join.index] & ~(1 << len(self.nodes))
        return bool(users) and all(user.name in _ERRORS for user in self.of(users))

    def obstacle(self, join: Node, branches: Sequence[int]) -> str | None:
        """Why a sum is no residual block; None: it is one."""
        lengths = [self.length(branch) for branch in branches]
        if max(lengths) > LONGEST_BRANCH:
            return f"a skip connection over {max(lengths)} convolutions is no residual block"
        weights = [(branch & self.of_kind["weighted"]).bit_count() for branch in branches]
        shortcut = min(range(len(branches)), key=lambda i: (branches[i] != 0, weights[i]))
        others = [(o, b) for i, (o, b) in enumerate(zip(join.inputs, branches, strict=True)) if i != shortcut]
        why = None
        if larger := next((n.name for b in branches for n in self.of(b) if _LARGER.search(n.name)), None):
            why = f"a branch makes the feature map larger ({larger})"
        elif not branches[shortcut]:
            if any(_is_strided(node) for _, branch in others for node in self.of(branch)):
                why = "a branch has a stride, and what it is added to has none"
        elif weights[shortcut] > 1:
            why = "no operand is a shortcut"
        elif weights[shortcut] == 1 and not _changes_shape(self.of(branches[shortcut])):
            why = "its shortcut is a layer that changes neither channels nor stride"
        elif not all(self.ends_in_norm(operand, branch) for operand, branch in others):
            why = "a branch beside a projection does not end in a batch norm"
        return why and f"a sum is no residual block: {why}"

    def is_inner(self, norm: Node, branch: int) -> bool:
        if not self.ancestors[norm.index] & branch & self.of_kind["weighted"]:
            return False
        pending, seen = [norm.index], 0
        while pending:
            index = pending.pop()
            new = self.users[index] & ~seen
            seen |= new
            if new & ~branch:
                return False
            pending.extend(_bits(new & ~self.of_kind["norm"]))
        return True


def _layer(node: Node) -> nn.Cell | None:
    """The layer whose attributes describe a node; a weighted one may have a construct of its own."""
    return node.caller if node.cell is None and isinstance(node.caller, _WEIGHTED) else node.cell


def _is_strided(node: Node) -> bool:
    """A convolution or a maximum over pixels; a mean may be that of a gate."""
    if node.kind != "weighted" and not node.name.startswith("MaxPool"):
        return False
    stride = getattr(_layer(node), "stride", 1)
    return any(s != 1 for s in (stride if isinstance(stride, tuple) else (stride,)))


def _changes_shape(shortcut: Iterable[Node]) -> bool:
    """Whether a projection changes channels or stride, as far as its layers tell."""
    for node in shortcut:
        layer = _layer(node)
        sizes = [getattr(layer, f"{side}_{what}", None) for what in ("channels", "features") for side in ("in", "out")]
        if sizes[0] != sizes[1] or sizes[2] != sizes[3] or _is_strided(node) or "pool" in node.name.lower():
            return True
    return False


def find_inner_norms(network: nn.Cell) -> InnerNorms:
    """Apply the rule of this module to a network.

    Args:
        network (Cell): with or without its loss. It is not run and not changed.

    Returns:
        InnerNorms.
    """
    names = cell_names(network)
    flow = trace(network, _leaf, names)
    graph, notes = _Graph(flow), list(flow.notes)
    around: dict[int, list[int]] = {}
    refused: list[tuple[str, list[int]]] = []
    residual = False
    for join in (n for n in flow.nodes if n.kind == "add"):
        branches = graph.branches(join)
        if not branches or any(b & graph.of_kind["loss"] for b in branches) or graph.is_error(join):
            continue
        if obstacle := graph.obstacle(join, branches):
            refused.append((f"{names.get(id(join.caller)) or 'the network'}: {obstacle}", branches))
            continue
        residual = True
        for branch in branches:
            for index in _bits(branch & graph.of_kind["norm"]):
                around.setdefault(index, []).append(branch)
    uses: dict[int, list[bool]] = {}
    for node in flow.nodes:
        if node.kind == "norm":
            branches = around.get(node.index, [])
            qualifies = bool(branches) and all(graph.is_inner(node, branch) for branch in branches)
            uses.setdefault(id(node.cell), []).append(qualifies)
    norms = []
    for _, cell in network.cells_and_names():
        if all(uses.get(id(cell), [False])):
            if id(cell) in flow.pinned and not isinstance(cell, RemovedBatchNorm):
                notes.append(f"{names[id(cell)]} is kept: it {flow.pinned[id(cell)]}")
            else:
                norms.append(cell)
    gone = {id(norm) for norm in norms}
    for note, branches in refused:
        inner = (n for b in branches for n in graph.of(b & graph.of_kind["norm"]) if graph.is_inner(n, b))
        if any(id(norm.cell) not in gone for norm in inner):
            notes.append(note)
    return InnerNorms(tuple(norms), residual, tuple(dict.fromkeys(notes)), flow)
