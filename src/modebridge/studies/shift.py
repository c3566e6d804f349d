"""What every row of the results table is worth under corruptions, and whether it tells other images from its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from modebridge.data import CORRUPTIONS, SEVERITIES
from modebridge.ensembles import scale
from modebridge.evaluate import (
    Answers,
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
from modebridge.members import RowPlan, members_of, row_plans
from modebridge.recipes import known_others
from modebridge.recipes.shifted_data import BUILT_IN, label_of
from modebridge.report import Cell, Column, StudyPart, StudyTable, TableRow, lines_figure
from modebridge.runs import Run, ShiftedAnswers, shifted_answers

__all__ = ["shift_study"]


@dataclass(frozen=True)
class _Scored:
    """A row of the results table on clean and corrupted images.

    Args:
        flops: in networks; of a cascade on clean images.
        scores: accuracy in %, NLL and ECE by table: "clean", "noise-1" and so on.
        surprise: (N,) of each image by table.
        clean: (N,) sureness of the test images: top probability and negative entropy.
        others: the same of other images by set.
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
    """Every row under corruptions of the test images, and whether it tells images of other sets from its own.

    Args:
        run: makes and asks the members.
        others: other sets, see `known_others`; without any, those that need no download.
    """
    names = known_others(others, run.recipe) or run.context.shifted.usual_others()
    # Rows of the results table: those of members that a plain run has.
    there = set(members_of(run.recipe))
    plans = [plan for plan in row_plans(run.recipe) if there.issuperset(plan.members)]
    members = list(dict.fromkeys(member for plan in plans for member in plan.members))
    answers = shifted_answers(run, members, names)
    rows = {plan: _scored(plan, answers) for plan in plans}
    tables = [
        _by_severity("NLL", 3, "down", rows, run, _notes(run)),
        _by_severity("ACC", 1, "up", rows, run),
        _by_severity("ECE", 3, "down", rows, run),
        _by_corruption(rows, run),
        _gains(rows, run),
        *(_detection(name, rows, run, len(answers.others[name].test_labels)) for name in names),
    ]
    about = "Every row under corruptions of the test images, and whether it tells images of other sets from its own."
    return StudyPart("shift", about, tuple(tables), _figure(rows))


def _scored(plan: RowPlan, answers: ShiftedAnswers) -> _Scored:
    """A row with the temperature, and a cascade's threshold, that it has on clean validation images."""
    names = [member.name for member in plan.members]
    threshold = None if plan.average_cost is None else answers.clean.threshold(names, plan.average_cost)
    temperatures = answers.clean.temperature(names[:1]), answers.clean.temperature(names)

    def predicted(of_table: Answers) -> Tensor:
        short, long = (
            scale(of_table.probabilities(some), temperature)
            for some, temperature in zip((names[:1], names), temperatures, strict=True)
        )
        return long if threshold is None else cascaded(short, long, threshold)[0]

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
        clean=_sureness(predicted(answers.whole)),
        others={name: _sureness(predicted(other)) for name, other in answers.others.items()},
    )


def _sureness(probabilities: Tensor) -> dict[str, Tensor]:
    return {"top": top_probability(probabilities), "entropy": negative_entropy(probabilities)}


def _at(severity: int) -> list[str]:
    return [f"{name}-{severity}" for name in CORRUPTIONS]


EVERY = [f"{name}-{severity}" for name in CORRUPTIONS for severity in SEVERITIES]
"""The corrupted tables: all corruptions at all severities weigh the same."""


def _by_severity(
    score: str,
    digits: int,
    better: str,
    rows: Mapping[RowPlan, _Scored],
    run: Run,
    notes: Sequence[str] = (),
) -> StudyTable:
    """A score on clean images, at each severity averaged over corruptions, and averaged over all."""
    groups = {"clean": ["clean"], **{str(k): _at(k) for k in SEVERITIES}, "mean": EVERY}
    columns = [Column("FLOPs", 2), *(Column(name, digits, "up" if better == "up" else "down") for name in groups)]
    lines = [
        TableRow(
            plan.name,
            {"FLOPs": Cell(row.flops), **{name: Cell(row.mean(score, tables)) for name, tables in groups.items()}},
        )
        for plan, row in rows.items()
    ]
    return StudyTable(f"{score} by severity, {run.recipe.name}", tuple(columns), tuple(lines), tuple(notes))


def _by_corruption(rows: Mapping[RowPlan, _Scored], run: Run) -> StudyTable:
    groups = {name: [f"{name}-{severity}" for severity in SEVERITIES] for name in CORRUPTIONS}
    columns = tuple(Column(name, 3, "down") for name in groups)
    lines = tuple(
        TableRow(plan.name, {name: Cell(row.mean("NLL", tables)) for name, tables in groups.items()})
        for plan, row in rows.items()
    )
    return StudyTable(f"NLL by corruption, over all severities, {run.recipe.name}", columns, lines)


def _gains(rows: Mapping[RowPlan, _Scored], run: Run) -> StudyTable:
    """How much NLL each row takes off one network's, on clean and on corrupted images."""
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
        f"NLL of {first} less that of the row; shifted: mean over all corruptions and severities, with its 95 % "
        f"bootstrap interval over test images (low, high); %: of what {second} takes off.",
    )
    return StudyTable(f"What each row takes off the NLL of {first}, {run.recipe.name}", columns, tuple(lines), notes)


def _detection(name: str, rows: Mapping[RowPlan, _Scored], run: Run, count: int) -> StudyTable:
    """How well a row's sureness tells test images from those of another set."""
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
        "calibrated probability; FPR95: the share of others taken for the data set where 95 % of its own images are."
    )
    return StudyTable(f"Test images against {label}, {run.recipe.name}", columns, tuple(lines), (note,))


def _notes(run: Run) -> list[str]:
    data = run.context.shifted
    low, high = data.span
    total = len(run.context.data.labels("test"))
    which = f"All {total:,}" if len(data.numbers) == total else f"{len(data.numbers):,} of {total:,}"
    notes = [
        f"{which} test images under {', '.join(CORRUPTIONS)} (Hendrycks and Dietterich, 2019), severities 1 to 5 "
        "averaged over corruptions; mean: over all of them. NLL and ECE with the temperature of clean validation "
        "images."
    ]
    if (low, high) != (0.0, 1.0):
        notes.append(f"Black and white, which corruptions refer to, are {low:.2f} and {high:.2f} in these images.")
    return notes


def _figure(rows: Mapping[RowPlan, _Scored]) -> str:
    """Scores by severity: one and two networks, and the last row of every family."""
    last = {plan.family: plan for plan in rows}
    chosen = {plan: row for plan, row in rows.items() if plan.role in ("one", "two") or plan in last.values()}
    one = next(row for plan, row in rows.items() if plan.role == "one")
    steps = {0.0: ["clean"], **{float(k): _at(k) for k in SEVERITIES}}
    xs = list(steps)

    def lines(score: str, base: _Scored | None = None) -> dict[str, tuple[list[float], list[float]]]:
        """By row; with a base how far the row is below it, which is 0 for the base itself."""

        def at(row: _Scored, tables: Sequence[str]) -> float:
            return row.mean(score, tables) if base is None else base.mean(score, tables) - row.mean(score, tables)

        return {plan.name: (xs, [at(row, tables) for tables in steps.values()]) for plan, row in chosen.items()}

    panels = [("ACC, %", lines("ACC")), ("NLL", lines("NLL")), ("NLL below one network's", lines("NLL", one))]
    return lines_figure(
        "study-shift", "Accuracy and NLL by severity of corruptions", "severity, 0: clean images", panels
    )
