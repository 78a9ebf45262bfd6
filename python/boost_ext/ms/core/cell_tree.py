"""The cells of a network: what they are called, and how one takes another's place."""

from __future__ import annotations

from typing import Any

from mindspore import nn

__all__ = ["cell_names", "replace_cells", "training_cell"]


def cell_names(network: nn.Cell) -> dict[int, str]:
    """Identity to name of every cell: the prefix of its parameters (a wrapper such as WithLossCell adds nothing)."""
    names: dict[int, str] = {}

    def visit(cell: nn.Cell, name: str) -> None:
        if id(cell) in names:
            return
        names[id(cell)] = name
        for key, child in cell._cells.items():
            if child is not None:
                visit(child, ".".join(filter(None, (name, key))) if cell._auto_prefix else name)

    visit(network, "")
    return names


def replace_cells(network: nn.Cell, replacements: dict[int, nn.Cell]) -> None:
    """Wherever a cell is held: as a child, and in lists, tuples and dicts such as SequentialCell.cell_list."""
    if not replacements:
        return
    for _, cell in list(network.cells_and_names()):
        cell.compile_cache.clear()  # or its next call in GRAPH_MODE would run the old graph
        for key, child in list(cell._cells.items()):
            if id(child) in replacements:
                cell.insert_child_to_cell(key, replacements[id(child)])
        for key, value in list(vars(cell).items()):
            if key != "_cells" and isinstance(value, (list, tuple, dict)):
                changed = _swap(value, replacements)
                if changed is not value:
                    object.__setattr__(cell, key, changed)


def _swap(value: Any, replacements: dict[int, nn.Cell]) -> Any:
    """The container with its cells replaced: lists and dicts themselves, tuples anew where something changed."""
    if isinstance(value, nn.Cell):
        return replacements.get(id(value), value)
    if type(value) in (list, dict):
        for key, item in list(enumerate(value) if isinstance(value, list) else value.items()):
            if (changed := _swap(item, replacements)) is not item:
                value[key] = changed
    elif type(value) is tuple:
        items = tuple(_swap(item, replacements) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def training_cell(network: Any) -> nn.Cell | None:
    """The training cell of boost_ext in a network, around which a data sink may have put other cells."""
    cell = network
    while isinstance(cell, nn.Cell):
        if callable(getattr(cell, "observe", None)) and callable(getattr(cell, "instrument", None)):
            return cell
        cell = getattr(cell, "network", None)
    return None
