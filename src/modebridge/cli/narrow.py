"""Tables on a screen that is too narrow for them: a list, nothing cut off."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

__all__ = ["fitting"]

FOLDED = 12
"""The narrowest that a column of words is folded to."""


def fitting(table: Table, console: Console) -> RenderableType:
    """The table where it fits the console, else a list: a row's name, and its other cells by their columns' names."""
    if _needs(table, console) <= console.width:
        return table
    columns = [[_text(cell, console) for cell in (column.header, *column.cells)] for column in table.columns]
    heads, *rows = zip(*columns, strict=True)
    lines = [Text(_text(table.title, console))] if table.title else []
    for drawn, row in zip(table.rows, rows, strict=True):
        named = [f"{head} {cell}".strip() for head, cell in zip(heads[1:], row[1:], strict=True) if cell]
        style = drawn.style or ""
        lines += [Text(text, style, overflow="fold") for text in (row[0], *_filled(named, console.width)) if text]
    return Group(*lines)


def _needs(table: Table, console: Console) -> int:
    """The columns of the screen that the table takes with no number and no name cut off."""
    needed = 0
    for column in table.columns:
        widths = [Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells)]
        widest = max(width.maximum for width in widths)
        needed += widest if column.no_wrap else min(widest, FOLDED)
    # As our tables are drawn: two spaces between columns, one at either end.
    return needed + 2 * len(table.columns)


def _filled(items: Sequence[str], width: int) -> list[str]:
    """Items in indented lines, none broken that fits one."""
    lines: list[str] = []
    for k, item in enumerate(items):
        ended = item if k == len(items) - 1 else f"{item},"
        if lines and cell_len(lines[-1]) + 1 + cell_len(ended) <= width:
            lines[-1] += f" {ended}"
        else:
            lines.append(f"  {ended}")
    return lines


def _text(cell: RenderableType | None, console: Console) -> str:
    return cell.plain if isinstance(cell, Text) else console.render_str(str(cell)).plain
