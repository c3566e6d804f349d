"""Tables on a screen that is too narrow for them: a list, nothing cut off."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = ["fitting"]

FOLDED = 12
"""The narrowest that a column of words is folded to."""


def fitting(table: Table, console: Console) -> RenderableType:
    """The table where it fits the console, else a list: a row's name, and its other cells by their columns' names."""
    if _needs(table, console) <= console.width:
        return table
    columns = [(_text(column.header, console), list(column.cells)) for column in table.columns]
    parts: list[RenderableType] = [Text(console.render_str(table.title).plain)] if isinstance(table.title, str) else []
    for k, row in enumerate(table.rows):
        style = row.style or ""
        first, *others = [(head, _text(cells[k], console)) for head, cells in columns]
        named = [f"{head} {cell.plain}".strip() for head, cell in others if cell.plain]
        parts.append(Text(first[1].plain, style=style, overflow="fold"))
        parts.append(Padding(Text(", ".join(named), style=style, overflow="fold"), (0, 0, 0, 2)))
    return Group(*parts)


def _needs(table: Table, console: Console) -> int:
    """The columns of the screen that the table takes with no number and no name cut off."""
    needed = 0
    for column in table.columns:
        widths = [Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells)]
        widest = max(width.maximum for width in widths)
        needed += widest if column.no_wrap else min(widest, FOLDED)
    # As our tables are drawn: one space to the right of every column but the last, collapsed with the next one's left.
    return needed + len(table.columns) - 1


def _text(cell: RenderableType, console: Console) -> Text:
    return cell if isinstance(cell, Text) else console.render_str(str(cell))
