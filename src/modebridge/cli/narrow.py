"""Print tables that are too wide for the terminal as lists, with nothing cut off."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

__all__ = ["fitting"]

FOLDED = 12
"""Minimum width of a text column that is wrapped."""


def fitting(table: Table, console: Console) -> RenderableType:
    """The table if it fits the console, else a list: each row's first cell, then its other cells with their headers."""
    if _needs(table, console) <= console.width:
        return table
    columns = [[_text(cell, console) for cell in (column.header, *column.cells)] for column in table.columns]
    heads, *rows = zip(*columns, strict=True)
    lines = [Text(_text(table.title, console))] if table.title else []
    for table_row, cells in zip(table.rows, rows, strict=True):
        labelled = [f"{head} {cell}".strip() for head, cell in zip(heads[1:], cells[1:], strict=True) if cell]
        style = table_row.style or ""
        lines += [Text(text, style, overflow="fold") for text in (cells[0], *_filled(labelled, console.width)) if text]
    return Group(*lines)


def _needs(table: Table, console: Console) -> int:
    """The width that the table needs with nothing cut off."""
    needed = 0
    for column in table.columns:
        widths = [Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells)]
        widest = max(width.maximum for width in widths)
        needed += widest if column.no_wrap else min(widest, FOLDED)
    # Our table style: two spaces between columns, one at each end.
    return needed + 2 * len(table.columns)


def _filled(items: Sequence[str], width: int) -> list[str]:
    """Comma-separated items in indented lines; items that fit on a line are not broken."""
    lines: list[str] = []
    for k, item in enumerate(items):
        part = item if k == len(items) - 1 else f"{item},"
        if lines and cell_len(lines[-1]) + 1 + cell_len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(f"  {part}")
    return lines


def _text(cell: RenderableType | None, console: Console) -> str:
    return cell.plain if isinstance(cell, Text) else console.render_str(str(cell)).plain
