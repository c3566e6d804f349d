"""The results table, for a terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table

from modebridge.report.rows import Row
from modebridge.report.tables import StudyTable

__all__ = ["COLUMNS", "markdown_table", "study_table", "terminal_table"]

COLUMNS = ("members", "FLOPs", "params", "ACC %", "NLL", "ECE", "Brier", "DEE")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"x{row.relative_flops:.2f}",
        f"x{row.relative_params:.2f}",
        f"{100 * row.accuracy:.1f}",
        f"{row.nll:.3f}",
        f"{row.ece:.3f}",
        f"{row.brier:.3f}",
        f"{row.dee:.2f}" if math.isfinite(row.dee) else "-",
    )


def terminal_table(rows: Sequence[Row], title: str) -> Table:
    """A rich table; rows other than deep ensembles are bold."""
    # No rules between columns, to fit the 80 columns of a plain terminal.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for k, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if k == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row), style="bold" if row.family != rows[0].family else None)
    return table


def study_table(table: StudyTable, *, spread: bool = True) -> Table:
    """A study's table as a rich table, with or without the spread."""
    drawn = Table(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    drawn.add_column("", no_wrap=True)
    for column in table.columns:
        drawn.add_column(column.name, justify="right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(row.name, *(table.text(row, column, spread=spread) for column in table.columns))
    return drawn


def markdown_table(rows: Sequence[Row]) -> str:
    """The same table as Markdown."""
    lines = [
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "|".join("---" if k == 0 else "---:" for k in range(len(COLUMNS))) + "|",
    ]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"
