"""Tables for terminals of any width, and progress bars where there is a terminal."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.progress import Progress, ProgressColumn
from rich.table import Column, Table
from rich.text import Text

__all__ = ["Fitting", "progress"]

_PROSE = 20
"""The narrowest column that sentences are wrapped in."""


class Fitting:
    """A table; on a terminal that is too narrow for it, its rows one below the other, with the headings at the cells.

    So nothing is cut off, as rich does with figures: give columns of figures ``no_wrap``. The first column is what a
    row is called.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self.table.columns
        widths = [_least(console, column) for column in columns]
        if sum(widths) + 3 * len(widths) + 1 <= options.max_width:
            yield self.table
            return
        if self.table.title:
            yield _text(console, self.table.title, "italic")
        for name, *cells in zip(*(column.cells for column in columns), strict=True):
            if str(name):
                yield _text(console, name, "bold")
            for column, cell in zip(columns[1:], cells, strict=True):
                if str(cell):
                    label = _text(console, column.header)
                    yield Padding((label + ": " if label else label) + _text(console, cell), (0, 0, 0, 2))


def _text(console: Console, cell: object, style: str = "") -> Text:
    text = cell.copy() if isinstance(cell, Text) else console.render_str(str(cell), highlight=False)
    text.stylize(style)
    text.overflow = "fold"
    return text


def _least(console: Console, column: Column) -> int:
    cells = [_text(console, cell).cell_len for cell in (column.header, *column.cells)]
    return max(cells) if column.no_wrap else min(max(cells), _PROSE)


def progress(*columns: str | ProgressColumn, shown: bool | None = None, transient: bool = False) -> Progress:
    """Progress bars on stderr; if `shown` is None, only where that is a terminal."""
    console = Console(stderr=True)
    shown = console.is_terminal if shown is None else shown
    console.quiet = not shown  # before 14.3 rich ended also bars that are not shown by an empty line
    return Progress(*columns, console=console, transient=transient, disable=not shown)
