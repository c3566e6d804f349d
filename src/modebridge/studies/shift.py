"""The rows of the results table on corrupted images, and their detection of out-of-distribution images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from modebridge.data import CORRUPTIONS, SEVERITIES
from modebridge.members import members_of, parse_member, row_plans
from modebridge.recipes import known_others
from modebridge.recipes.shifted import BUILT_IN, label_of
from modebridge.report import Cell, Column, StudyTable, lines_figure
from modebridge.runs import Run
from modebridge.scoring import (
    LogitTable,
    Row,
    Scored,
    auroc,
    bootstrap_mean,
    fpr_at,
    negative_entropy,
    surprisals,
    top_probability,
)
from modebridge.studies.sheet import score_cells
from modebridge.studies.shifted import ShiftedAnswers, shifted_answers

__all__ = ["shift_study"]

EVERY = [f"{name}-{severity}" for name in CORRUPTIONS for severity in SEVERITIES]
"""All corrupted tables; all corruptions and severities have equal weight."""
STEPS = {0: ["clean"], **{severity: [f"{name}-{severity}" for name in CORRUPTIONS] for severity in SEVERITIES}}
"""Tables by severity; 0 for clean images."""


def shift_study(run: Run, others: Sequence[str] = ()) -> tuple[list[StudyTable], str]:
    """All rows on corrupted test images, and how well they detect out-of-distribution images.

    Args:
        run: the run that trains and evaluates the members.
        others: out-of-distribution sets, see `known_others`; by default, those that need no download.
    """
    names = known_others(others, run.recipe) or run.setting.shifted.usual_others()
    # Rows of the results table: their members exist in a plain run.
    existing = {member.name for member in members_of(run.recipe)}
    rows = [row for row in row_plans(run.recipe) if existing.issuperset(row.members)]
    members = [parse_member(name) for name in dict.fromkeys(name for row in rows for name in row.members)]
    shifted = _Shifted(rows, shifted_answers(run, members, names))
    tables = [
        shifted.by_severity(Column("NLL", 3, "down"), _notes(run)),
        shifted.by_severity(Column("ACC", 1, "up")),
        shifted.by_severity(Column("ECE", 3, "down")),
        shifted.by_corruption(),
        shifted.gains(),
        *map(shifted.detection, names),
    ]
    tables = [replace(table, title=f"{table.title}, {run.recipe.name}") for table in tables]
    return tables, shifted.figure()


class _Shifted:
    """Rows with the temperature, and the threshold of a cascade, fitted on clean validation images."""

    def __init__(self, rows: Sequence[Row], answers: ShiftedAnswers) -> None:
        self._rows, self._answers = rows, answers
        self._thresholds = {
            row.name: None if row.average_cost is None else answers.clean.threshold(row.members, row.average_cost)
            for row in rows
        }
        self._tables: dict[str, LogitTable] = {"clean": answers.clean, **answers.corrupted}
        self._scored: dict[str, dict[str, Scored]] = {
            row.name: {
                name: table.score(row.members, threshold=self._thresholds[row.name])
                for name, table in self._tables.items()
            }
            for row in rows
        }
        self._roles = {row.role: row for row in rows if row.role}

    def _predicted(self, row: Row, table: LogitTable) -> Tensor:
        return table.calibrated(row.members, threshold=self._thresholds[row.name])

    def _mean(self, row: Row, score: str, tables: Sequence[str]) -> float:
        return fmean(score_cells(self._scored[row.name][table])[score] for table in tables)

    def by_severity(self, score: Column, notes: Sequence[str] = ()) -> StudyTable:
        """A score on clean images, at each severity (mean over corruptions), and the mean over all."""
        groups = {"clean": STEPS[0], **{str(severity): STEPS[severity] for severity in SEVERITIES}, "mean": EVERY}
        columns = (Column("FLOPs", 2), *(replace(score, name=name) for name in groups))
        cells = {
            row.name: {
                "FLOPs": Cell(self._mean(row, "FLOPs", ["clean"])),
                **{name: Cell(self._mean(row, score.name, tables)) for name, tables in groups.items()},
            }
            for row in self._rows
        }
        return StudyTable(f"{score.name} by severity", columns, cells, tuple(notes))

    def by_corruption(self) -> StudyTable:
        groups = {name: [f"{name}-{severity}" for severity in SEVERITIES] for name in CORRUPTIONS}
        columns = tuple(Column(name, 3, "down") for name in groups)
        cells = {
            row.name: {name: Cell(self._mean(row, "NLL", tables)) for name, tables in groups.items()}
            for row in self._rows
        }
        return StudyTable("NLL by corruption, over all severities", columns, cells)

    def gains(self) -> StudyTable:
        """The reduction in NLL of each row relative to one network, on clean and on corrupted images."""
        one, two = self._roles["one"], self._roles["two"]

        def surprise(row: Row, tables: Sequence[str]) -> Tensor:
            of_tables = [self._tables[table] for table in tables]
            return torch.stack([surprisals(self._predicted(row, one), one.test_labels) for one in of_tables]).mean(0)

        rows: dict[str, dict[str, Cell]] = {row.name: {} for row in self._rows if row is not one}
        for what, tables in (("clean", ["clean"]), ("shifted", EVERY)):
            base = surprise(one, tables)
            gain = {row.name: base - surprise(row, tables) for row in self._rows if row is not one}
            whole = float(gain[two.name].mean())
            for name, cells in rows.items():
                mean = float(gain[name].mean())
                cells |= {what: Cell(mean), f"{what} %": Cell(100 * mean / whole if whole > 0 else math.nan)}
                if what == "shifted":
                    low, high = bootstrap_mean(gain[name])
                    cells |= {"low": Cell(low), "high": Cell(high)}
        columns = (
            *(Column("clean", 4, "up"), Column("shifted", 4, "up"), Column("low", 4), Column("high", 4)),
            *(Column("clean %", 0), Column("shifted %", 0)),
        )
        notes = (
            f"NLL of {one.name} minus that of the row. shifted: mean over all corruptions and severities, with its "
            f"95 % bootstrap interval over test images (low, high). %: share of the reduction of {two.name}.",
        )
        return StudyTable(f"Reduction in NLL relative to {one.name}", columns, rows, notes)

    def detection(self, other: str) -> StudyTable:
        """How well the confidence of a row separates test images from those of another set."""
        whole, others = self._answers.whole, self._answers.others[other]
        rows: dict[str, dict[str, Cell]] = {}
        for row in self._rows:
            ours, theirs = self._predicted(row, whole), self._predicted(row, others)
            rows[row.name] = {}
            for by, confidence in (("", top_probability), (" by entropy", negative_entropy)):
                pair = confidence(ours), confidence(theirs)
                rows[row.name] |= {f"AUROC{by}": Cell(auroc(*pair)), f"FPR95 %{by}": Cell(100 * fpr_at(*pair))}
        columns = (
            *(Column("AUROC", 3, "up"), Column("FPR95 %", 1, "down")),
            *(Column("AUROC by entropy", 3, "up"), Column("FPR95 % by entropy", 1, "down")),
        )
        label = label_of(other)
        what = f"{label}: {BUILT_IN[other]}, not a natural set. " if other in BUILT_IN else ""
        note = (
            f"{what}{len(whole.test_labels):,} test images against {len(others.test_labels):,} others, by the top "
            "calibrated probability. FPR95: share of the others that are accepted when 95 % of the test images are."
        )
        return StudyTable(f"Test images against {label}", columns, rows, (note,))

    def figure(self) -> str:
        """Scores by severity: one and two networks, and the last row of every family."""
        last = {row.family: row for row in self._rows}
        chosen = [row for row in self._rows if row.role in ("one", "two") or row in last.values()]
        one, xs = self._roles["one"], [float(severity) for severity in STEPS]

        def lines(score: str, base: Row | None = None) -> dict[str, tuple[list[float], list[float]]]:
            """Scores by row; with a base, the reduction relative to it, which is 0 for the base itself."""

            def at(row: Row, tables: Sequence[str]) -> float:
                value = self._mean(row, score, tables)
                return value if base is None else self._mean(base, score, tables) - value

            return {row.name: (xs, [at(row, tables) for tables in STEPS.values()]) for row in chosen}

        panels = [("ACC, %", lines("ACC")), ("NLL", lines("NLL")), ("NLL below one network's", lines("NLL", one))]
        return lines_figure("severity, 0: clean images", panels)


def _notes(run: Run) -> list[str]:
    data = run.setting.shifted
    low, high = data.span
    total = len(run.setting.data.labels("test"))
    which = f"All {total:,}" if len(data.numbers) == total else f"{len(data.numbers):,} of {total:,}"
    notes = [
        f"{which} test images under {', '.join(CORRUPTIONS)} (Hendrycks and Dietterich, 2019), severities 1 to 5 "
        "averaged over corruptions; mean: over all of them. NLL and ECE use the temperature fitted on clean "
        "validation images."
    ]
    if (low, high) != (0.0, 1.0):
        notes.append(f"Corruptions take {low:.2f} as black and {high:.2f} as white in these images.")
    return notes
