"""The rows of the results table on corrupted images, and their detection of out-of-distribution images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from modebridge.data import CORRUPTIONS, SEVERITIES
from modebridge.ensembles import scale
from modebridge.members import RowPlan, members_of, row_plans
from modebridge.recipes import known_others
from modebridge.recipes.shifted_data import BUILT_IN, label_of
from modebridge.report import Cell, Column, StudyPart, StudyTable, TableRow, lines_figure
from modebridge.runs import Run, ShiftedAnswers, shifted_answers
from modebridge.scoring import (
    LogitTable,
    accuracy,
    auroc,
    bootstrap_mean,
    cascaded,
    ece,
    fpr_at,
    negative_entropy,
    surprisals,
    top_probability,
)

__all__ = ["shift_study"]


@dataclass(frozen=True)
class _Scored:
    """A row of the results table on clean and corrupted images.

    Args:
        flops: FLOPs in multiples of one network; for a cascade, on clean images.
        scores: accuracy in %, NLL and ECE by table: "clean", "noise-1" and so on.
        surprise: (N,) surprisal of each image, by table.
        clean: (N,) confidence on the test images: top probability and negative entropy.
        others: confidence on out-of-distribution images, by set.
    """

    flops: float
    scores: Mapping[str, Mapping[str, float]]
    surprise: Mapping[str, Tensor]
    clean: Mapping[str, Tensor]
    others: Mapping[str, Mapping[str, Tensor]]

    def mean(self, score: str, tables: Sequence[str]) -> float:
        """A score, averaged over tables."""
        return fmean(self.scores[table][score] for table in tables)


def shift_study(run: Run, others: Sequence[str] = ()) -> StudyPart:
    """All rows on corrupted test images, and how well they detect out-of-distribution images.

    Args:
        run: the run that trains and evaluates the members.
        others: out-of-distribution sets, see `known_others`; by default, those that need no download.
    """
    names = known_others(others, run.recipe) or run.setting.shifted.usual_others()
    # Rows of the results table: their members exist in a plain run.
    existing = set(members_of(run.recipe))
    plans = [plan for plan in row_plans(run.recipe) if existing.issuperset(plan.members)]
    members = list(dict.fromkeys(member for plan in plans for member in plan.members))
    answers = shifted_answers(run, members, names)
    rows = {plan: _scored(plan, answers) for plan in plans}
    tables = [
        _by_severity(Column("NLL", 3, "down"), rows, run, _notes(run)),
        _by_severity(Column("ACC", 1, "up"), rows, run),
        _by_severity(Column("ECE", 3, "down"), rows, run),
        _by_corruption(rows, run),
        _gains(rows, run),
        *(_detection(name, rows, run, len(answers.others[name].test_labels)) for name in names),
    ]
    about = "All rows on corrupted test images, and how well they detect out-of-distribution images."
    return StudyPart("shift", about, tuple(tables), _figure(rows))


def _scored(plan: RowPlan, answers: ShiftedAnswers) -> _Scored:
    """Score a row with the temperature, and the threshold of a cascade, fitted on clean validation images."""
    names = [member.name for member in plan.members]
    threshold = None if plan.average_cost is None else answers.clean.threshold(names, plan.average_cost)

    def calibrated(of_table: LogitTable, members: Sequence[str]) -> Tensor:
        return scale(of_table.probabilities(members), answers.clean.temperature(members))

    def predicted(of_table: LogitTable) -> Tensor:
        whole = calibrated(of_table, names)
        return whole if threshold is None else cascaded(calibrated(of_table, names[:1]), whole, threshold)[0]

    scores: dict[str, dict[str, float]] = {}
    surprise: dict[str, Tensor] = {}
    for table, of_table in {"clean": answers.clean, **answers.corrupted}.items():
        probabilities, labels = predicted(of_table), of_table.test_labels
        surprise[table] = surprisals(probabilities, labels)
        scores[table] = {
            "ACC": 100 * accuracy(probabilities, labels),
            "NLL": float(surprise[table].mean()),
            "ECE": ece(probabilities, labels),
        }
    return _Scored(
        flops=answers.clean.score(names, threshold=threshold).relative_flops,
        scores=scores,
        surprise=surprise,
        clean=_confidence(predicted(answers.whole)),
        others={name: _confidence(predicted(other)) for name, other in answers.others.items()},
    )


def _confidence(probabilities: Tensor) -> dict[str, Tensor]:
    return {"top": top_probability(probabilities), "entropy": negative_entropy(probabilities)}


def _at(severity: int) -> list[str]:
    return [f"{name}-{severity}" for name in CORRUPTIONS]


EVERY = [f"{name}-{severity}" for name in CORRUPTIONS for severity in SEVERITIES]
"""All corrupted tables; all corruptions and severities have equal weight."""


def _by_severity(score: Column, rows: Mapping[RowPlan, _Scored], run: Run, notes: Sequence[str] = ()) -> StudyTable:
    """A score on clean images, at each severity (mean over corruptions), and the mean over all."""
    groups = {"clean": ["clean"], **{str(k): _at(k) for k in SEVERITIES}, "mean": EVERY}
    columns = [Column("FLOPs", 2), *(replace(score, name=name) for name in groups)]
    lines = [
        TableRow(
            plan.name,
            {"FLOPs": Cell(row.flops), **{name: Cell(row.mean(score.name, tables)) for name, tables in groups.items()}},
        )
        for plan, row in rows.items()
    ]
    return StudyTable(f"{score.name} by severity, {run.recipe.name}", tuple(columns), tuple(lines), tuple(notes))


def _by_corruption(rows: Mapping[RowPlan, _Scored], run: Run) -> StudyTable:
    groups = {name: [f"{name}-{severity}" for severity in SEVERITIES] for name in CORRUPTIONS}
    columns = tuple(Column(name, 3, "down") for name in groups)
    lines = tuple(
        TableRow(plan.name, {name: Cell(row.mean("NLL", tables)) for name, tables in groups.items()})
        for plan, row in rows.items()
    )
    return StudyTable(f"NLL by corruption, over all severities, {run.recipe.name}", columns, lines)


def _gains(rows: Mapping[RowPlan, _Scored], run: Run) -> StudyTable:
    """The reduction in NLL of each row relative to one network, on clean and on corrupted images."""
    roles = {plan.role: plan for plan in rows if plan.role}
    one, two = rows[roles["one"]], rows[roles["two"]]

    def gain(row: _Scored, tables: Sequence[str]) -> Tensor:
        return torch.stack([one.surprise[table] - row.surprise[table] for table in tables]).mean(dim=0)

    lines = []
    for plan, row in rows.items():
        if plan.role == "one":
            continue
        cells: dict[str, Cell] = {}
        for what, tables in (("clean", ["clean"]), ("shifted", EVERY)):
            mean, whole = float(gain(row, tables).mean()), float(gain(two, tables).mean())
            cells |= {what: Cell(mean), f"{what} %": Cell(100 * mean / whole if whole > 0 else math.nan)}
        low, high = bootstrap_mean(gain(row, EVERY))
        lines.append(TableRow(plan.name, {**cells, "low": Cell(low), "high": Cell(high)}))
    columns = (
        Column("clean", 4, "up"),
        Column("shifted", 4, "up"),
        Column("low", 4),
        Column("high", 4),
        Column("clean %", 0),
        Column("shifted %", 0),
    )
    first, second = roles["one"].name, roles["two"].name
    notes = (
        f"NLL of {first} minus that of the row. shifted: mean over all corruptions and severities, with its 95 % "
        f"bootstrap interval over test images (low, high). %: share of the reduction of {second}.",
    )
    return StudyTable(f"Reduction in NLL relative to {first}, {run.recipe.name}", columns, tuple(lines), notes)


def _detection(name: str, rows: Mapping[RowPlan, _Scored], run: Run, count: int) -> StudyTable:
    """How well the confidence of a row separates test images from those of another set."""
    lines = []
    for plan, row in rows.items():
        other, ours = row.others[name], row.clean
        cells = {
            "AUROC": Cell(auroc(ours["top"], other["top"])),
            "FPR95 %": Cell(100 * fpr_at(ours["top"], other["top"])),
            "AUROC by entropy": Cell(auroc(ours["entropy"], other["entropy"])),
            "FPR95 % by entropy": Cell(100 * fpr_at(ours["entropy"], other["entropy"])),
        }
        lines.append(TableRow(plan.name, cells))
    columns = (
        Column("AUROC", 3, "up"),
        Column("FPR95 %", 1, "down"),
        Column("AUROC by entropy", 3, "up"),
        Column("FPR95 % by entropy", 1, "down"),
    )
    label = label_of(name)
    what = f"{label}: {BUILT_IN[name]}, not a natural set. " if name in BUILT_IN else ""
    note = (
        f"{what}{len(next(iter(rows.values())).clean['top']):,} test images against {count:,} others, by the top "
        "calibrated probability. FPR95: share of the others that are accepted when 95 % of the test images are."
    )
    return StudyTable(f"Test images against {label}, {run.recipe.name}", columns, tuple(lines), (note,))


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


def _figure(rows: Mapping[RowPlan, _Scored]) -> str:
    """Scores by severity: one and two networks, and the last row of every family."""
    last = {plan.family: plan for plan in rows}
    chosen = {plan: row for plan, row in rows.items() if plan.role in ("one", "two") or plan in last.values()}
    one = next(row for plan, row in rows.items() if plan.role == "one")
    steps = {0.0: ["clean"], **{float(k): _at(k) for k in SEVERITIES}}
    xs = list(steps)

    def lines(score: str, base: _Scored | None = None) -> dict[str, tuple[list[float], list[float]]]:
        """Scores by row; with a base, the reduction relative to it, which is 0 for the base itself."""

        def at(row: _Scored, tables: Sequence[str]) -> float:
            return row.mean(score, tables) if base is None else base.mean(score, tables) - row.mean(score, tables)

        return {plan.name: (xs, [at(row, tables) for tables in steps.values()]) for plan, row in chosen.items()}

    panels = [("ACC, %", lines("ACC")), ("NLL", lines("NLL")), ("NLL below one network's", lines("NLL", one))]
    return lines_figure(
        "study-shift", "Accuracy and NLL by severity of corruptions", "severity, 0: clean images", panels
    )
