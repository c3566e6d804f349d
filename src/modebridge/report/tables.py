"""Tables with spread and the paper's numbers beside ours: Markdown, LaTeX and plain data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from modebridge.errors import ModebridgeError

__all__ = ["Cell", "Column", "StudyTable", "TableRow", "cell_of"]


@dataclass(frozen=True)
class Column:
    """A column: its name, number of decimals, and which direction is better."""

    name: str
    digits: int = 3
    better: Literal["up", "down", ""] = ""


@dataclass(frozen=True)
class Cell:
    """A mean, its population standard deviation over several groups, and the number that the paper prints."""

    mean: float
    std: float | None = None
    paper: str = ""


def cell_of(values: Sequence[float], paper: str = "") -> Cell:
    """A cell from the values of several groups of modes.

    >>> cell_of([1.0, 3.0])
    Cell(mean=2.0, std=1.0, paper='')
    >>> cell_of([float("inf"), float("-inf")])  # DEE beyond both ends of a reference that does not fall
    Cell(mean=nan, std=None, paper='')
    """
    mean = sum(values) / len(values) if any(map(math.isinf, values)) else statistics.fmean(values)
    return Cell(mean, statistics.pstdev(values) if len(values) > 1 and math.isfinite(mean) else None, paper)


@dataclass(frozen=True)
class TableRow:
    """A row: its cells by column name; some may be missing."""

    name: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class StudyTable:
    """A table of a study.

    Args:
        title: title of the table.
        columns: columns in order.
        rows: rows in order.
        notes: sentences below the table.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_paper(self) -> bool:
        """Whether any cell has a number of the paper."""
        return any(cell.paper for row in self.rows for cell in row.cells.values())

    def best(self, column: Column) -> float | None:
        """The best mean of a column; None if no direction is better."""
        values = [row.cells[column.name].mean for row in self.rows if column.name in row.cells]
        values = [value for value in values if math.isfinite(value)]
        if not values or not column.better:
            return None
        return max(values) if column.better == "up" else min(values)

    def markdown(self) -> str:
        """The table as Markdown: the best of each column in bold, the paper's numbers in brackets."""
        lines = [
            f"**{self.title}**",
            "",
            "| | " + " | ".join(column.name for column in self.columns) + " |",
            "|---|" + "---:|" * len(self.columns),
        ]
        for row in self.rows:
            cells = [self.text(row, column, "**{}**") for column in self.columns]
            lines.append(f"| {row.name} | " + " | ".join(cells) + " |")
        notes = [*self.notes, *(["In brackets: the paper's number."] if self.has_paper else [])]
        return "\n".join([*lines, "", *notes]) + "\n"

    def latex(self) -> str:
        """The table as a LaTeX tabular (booktabs)."""

        def safe(text: str) -> str:
            for sign in "&%#_":
                text = text.replace(sign, "\\" + sign)
            return text.replace("R2", "$R^2$")

        head = " & ".join(["", *(safe(column.name) for column in self.columns)])
        lines = [f"% {self.title}", r"\begin{tabular}{l" + "r" * len(self.columns) + "}", r"\toprule", head + r" \\"]
        lines.append(r"\midrule")
        for row in self.rows:
            cells = [self.text(row, column, r"\textbf{{{}}}", r" $\pm$ ") for column in self.columns]
            lines.append(" & ".join([safe(row.name), *cells]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def as_dict(self) -> dict[str, Any]:
        """The table as plain data for JSON; values that are not finite become None."""

        def plain(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: plain(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            return None if isinstance(value, float) and not math.isfinite(value) else value

        as_plain_data: dict[str, Any] = plain(asdict(self))
        return as_plain_data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StudyTable:
        """The table from the output of `as_dict`; anything else raises an error."""

        def number(value: Any) -> float:
            return math.nan if value is None else float(value)

        def cell(record: Mapping[str, Any]) -> Cell:
            std = None if record["std"] is None else float(record["std"])
            return Cell(number(record["mean"]), std, str(record["paper"]))

        def column(record: Mapping[str, Any]) -> Column:
            if not 0 <= record["digits"] <= 20 or record["better"] not in ("up", "down", ""):
                raise ValueError(record)
            return Column(str(record["name"]), int(record["digits"]), record["better"])

        try:
            return cls(
                str(data["title"]),
                tuple(column(record) for record in data["columns"]),
                tuple(
                    TableRow(str(row["name"]), {str(key): cell(value) for key, value in row["cells"].items()})
                    for row in data["rows"]
                ),
                tuple(str(note) for note in data["notes"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ModebridgeError(
                f"Expected the table of a study, but got '{type(error).__name__}: {error}'; run the study again."
            ) from error

    def text(
        self, row: TableRow, column: Column, bold: str = "{}", between: str = " ± ", *, spread: bool = True
    ) -> str:
        """One cell as text; empty if the row has none."""
        cell = row.cells.get(column.name)
        if cell is None:
            return ""
        text = f"{cell.mean:.{column.digits}f}" if math.isfinite(cell.mean) else "-"
        best = self.best(column)
        if best is not None and f"{best:.{column.digits}f}" == text and len(self.rows) > 1:
            text = bold.format(text)
        if cell.std is not None and spread:
            text += f"{between}{cell.std:.{column.digits}f}"
        return text + (f" [{cell.paper}]" if cell.paper else "")
