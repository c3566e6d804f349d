"""The results table and the tables of studies: for a terminal, as Markdown and plain data."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from modebridge.errors import ModebridgeError
from modebridge.scoring import Row, deep_ensembles

if TYPE_CHECKING:
    from rich.table import Table

TERMS = {
    "cost, FLOPs": "multiply-adds per image, relative to one network; for a cascade the average over the test images",
    "params, #Params": "number of parameters, relative to one network",
    "ACC": "accuracy on the test split, in percent",
    "NLL": "negative log-likelihood in nats; lower is better",
    "ECE": "expected calibration error in 15 bins; lower is better",
    "Brier, BS": "Brier score, summed over classes; lower is better",
    "DEE": "deep ensemble equivalent, the number of networks whose average has the same NLL, interpolated",
    "T": "temperature fitted on the validation split; above 1 it makes predictions less confident, below 1 more",
    "R2": "share of the variance of the target's probabilities that is explained; higher is better",
    "KL": "Kullback-Leibler divergence from the target's prediction, in nats; lower is better",
    "training": "epochs of one network for all that a row is built from; running a frozen network counts a third",
    "AUROC": "area under the ROC curve; 0.5 is chance, 1 is perfect",
    "AURC": "mean error, in percent, over all shares of images answered, the most confident first; lower is better",
    "E-AURC": "AURC minus that of the best order, in which all errors come last",
    "ACC at 90 %": "accuracy on the 90 % most confident images, in percent",
    "answered": "largest share of the images, in percent, that can be answered with 5 % errors",
    "coverage": "share of images, in percent, whose set of classes contains the true one; sets are fitted for 90 %",
    "set size": "mean number of classes in a set",
}
"""What the columns of tables mean."""


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
class StudyTable:
    """A table of a study."""

    title: str
    columns: tuple[Column, ...]
    rows: Mapping[str, Mapping[str, Cell]]  # by row and column, in order; some may be missing
    notes: tuple[str, ...] = ()  # sentences below the table

    def means(self, column: str, rows: Sequence[str] | None = None) -> list[float]:
        """The means of a column, of all rows or of some."""
        return [self.rows[name][column].mean for name in (self.rows if rows is None else rows)]

    def text(self, row: str, column: Column, bold: str = "{}") -> str:
        """One cell as text; empty if the row has none."""
        cell = self.rows[row].get(column.name)
        if cell is None:
            return ""
        text = f"{cell.mean:.{column.digits}f}" if math.isfinite(cell.mean) else "-"
        if len(self.rows) > 1 and text == self._best(column):
            text = bold.format(text)
        if cell.std is not None:
            text += f" ± {cell.std:.{column.digits}f}"
        return text + (f" [{cell.paper}]" if cell.paper else "")

    def _best(self, column: Column) -> str:
        """The best mean of a column as text; empty if no direction is better."""
        values = [cells[column.name].mean for cells in self.rows.values() if column.name in cells]
        values = [value for value in values if math.isfinite(value)]
        if not values or not column.better:
            return ""
        return f"{max(values) if column.better == 'up' else min(values):.{column.digits}f}"

    def markdown(self) -> str:
        """The table as Markdown: the best of each column in bold, the paper's numbers in brackets."""
        head = ["", *(column.name for column in self.columns)]
        rows = [[name, *(self.text(name, column, "**{}**") for column in self.columns)] for name in self.rows]
        printed = any(cell.paper for cells in self.rows.values() for cell in cells.values())
        notes = [*self.notes, *(["In brackets: the paper's number."] if printed else [])]
        return "\n".join([f"**{self.title}**", "", _markdown(head, rows), *notes]) + "\n"

    def records(self) -> list[dict[str, Any]]:
        """Its cells as flat records, one per row: means, and spreads where there are some."""
        records = []
        for name, cells in self.rows.items():
            record: dict[str, Any] = {"table": self.title, "row": name}
            for column, cell in cells.items():
                record |= {column: cell.mean} | ({} if cell.std is None else {f"{column} spread": cell.std})
            records.append(record)
        return records

    def to_dict(self) -> dict[str, Any]:
        """The table as plain data for JSON; values that are not finite become None."""
        return asdict(self, dict_factory=_finite)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StudyTable:
        """The table from the output of `to_dict`; anything else raises an error."""

        def cell(mean: float | None, std: float | None, paper: str) -> Cell:
            return Cell(math.nan if mean is None else float(mean), None if std is None else float(std), str(paper))

        try:
            columns = tuple(Column(str(one["name"]), int(one["digits"]), one["better"]) for one in data["columns"])
            if not all(0 <= column.digits <= 20 for column in columns):
                raise ValueError("digits")
            rows = {name: {key: cell(**value) for key, value in cells.items()} for name, cells in data["rows"].items()}
            return cls(str(data["title"]), columns, rows, tuple(map(str, data["notes"])))
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ModebridgeError(
                f"Expected the table of a study, but got '{type(error).__name__}: {error}'; run the study again."
            ) from error


def csv_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Flat records as CSV, with all of their keys as columns; lists are joined by spaces.

    >>> csv_of([{"a": 1, "b": ["x", "y"]}, {"a": None, "c": 2}]).splitlines()
    ['a,b,c', '1,x y,', ',,2']
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(key for one in records for key in one)))
    writer.writeheader()
    for one in records:
        writer.writerow({key: " ".join(map(str, v)) if isinstance(v, list) else v for key, v in one.items()})
    return file.getvalue()


def study_table(table: StudyTable) -> Table:
    """A study's table for a terminal."""
    drawn = plain_table("", *(column.name for column in table.columns), text=(), title=table.title)
    for name in table.rows:
        drawn.add_row(name, *(table.text(name, column) for column in table.columns))
    return drawn


DECISIONS = {
    Column("AURC", 2, "down"): ("aurc", 100),
    Column("E-AURC", 2, "down"): ("excess_aurc", 100),
    Column("ACC at 90 %", 2, "up"): ("accuracy_at_90", 100),
    Column("answered", 1, "up"): ("answered_at_5", 100),
    Column("coverage", 1): ("coverage", 100),
    Column("set size", 2, "down"): ("set_size", 1),
}


def decisions_table(rows: Sequence[Row]) -> StudyTable:
    """How well rows abstain, and the sets of classes they name."""
    cells = {
        row.name: {column.name: Cell(scale * getattr(row.scores, name)) for column, (name, scale) in DECISIONS.items()}
        for row in rows
    }
    return StudyTable("Decisions on the test split", tuple(DECISIONS), cells)


def terminal_table(rows: Sequence[Row], training: Mapping[str, float]) -> Table:
    """A few rows for a terminal: what they are, cost, accuracy, NLL, and the epochs of `training`, if known."""
    table = plain_table("", "cost", "accuracy", "NLL", *(["training"] if training else []), text=())
    for row in rows:
        scored = row.scores
        cells = [f"x{scored.cost.relative_flops:.2f}", f"{scored.accuracy:.1%}", f"{scored.nll:.3f}"]
        table.add_row(row.name, *cells, *([f"{training[row.name]:.0f} epochs"] if training else []))
    return table


def markdown_table(rows: Sequence[Row]) -> str:
    """The results table as Markdown."""
    dees, lines = dee_cells(rows), []
    for row in rows:
        scored, cost = row.scores, row.scores.cost
        prices = [f"x{cost.relative_flops:.2f}", f"x{cost.relative_params:.2f}", f"{100 * scored.accuracy:.1f}"]
        lines.append(
            [row.name, *prices, *(f"{one:.3f}" for one in (scored.nll, scored.ece, scored.brier)), dees[row.name]]
        )
    return _markdown(("members", "cost", "params", "ACC %", "NLL", "ECE", "Brier", "DEE"), lines)


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Scored rows as plain, flat data for JSON; values that are not finite become None."""
    names = ("name", "family", "role", "note")
    return [{**{name: getattr(row, name) for name in names}, **row.scores.to_dict()} for row in rows]


def dee_cells(rows: Sequence[Row]) -> dict[str, str]:
    """DEE as text by row; beyond the ensembles that there are, it is only said that it is beyond."""
    most = max(len(row.members) for row in deep_ensembles(rows))

    def text(dee: float) -> str:
        inside = "-" if math.isnan(dee) else f"{dee:.2f}"
        return "<1" if dee < 1 else f">{most}" if dee > most else inside

    return {row.name: text(row.scores.dee) for row in rows}


def plain_table(*columns: str, text: Sequence[int] = (0,), title: str | None = None) -> Table:
    """A table for a terminal; columns in `text` hold words, the others numbers; what is too wide is folded, not cut."""
    from rich import box
    from rich.table import Table

    # No rules between columns, to fit.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 or k in text else "right", overflow="fold")
    return table


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)]) + "\n"


def _finite(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in fields}
