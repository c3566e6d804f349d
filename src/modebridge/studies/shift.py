"""The rows of the results table on corrupted images, and their detection of out-of-distribution images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Self

import torch
from torch import Tensor

from modebridge.data import CORRUPTIONS, SEVERITIES
from modebridge.members import ArtefactData, Made, Member, Parents, Setting, members_of, parse_member, row_plans
from modebridge.recipes import known_others
from modebridge.recipes.shifted import BUILT_IN, CORRUPTED, file_name_of, label_of, tables_of
from modebridge.report import Cell, Column, StudyTable, lines_figure
from modebridge.runs import Run
from modebridge.runs.logits import MemberLogits, load, predict
from modebridge.scoring import LogitTable, Row, auroc, bootstrap_mean, fpr_at, surprisals
from modebridge.studies.sheet import score_cells
from modebridge.training import TrainConfig

EVERY = tables_of(CORRUPTED)
"""All corrupted tables; all corruptions and severities have equal weight."""
STEPS = {"clean": ["clean"], **{str(step): [f"{name}-{step}" for name in CORRUPTIONS] for step in SEVERITIES}}
"""Tables by severity."""


@dataclass(frozen=True)
class ShiftedLogits(MemberLogits):
    """The logits of a member on corrupted test images, or on images of another set; see `tables_of`.

    In half precision, with the highest logit of each row subtracted (probabilities are the same), so that values near
    the top, which determine scores, are the most precise.
    """

    images: str
    folder = "shifted"
    stage = "shifted scores"

    @property
    def name(self) -> str:
        return f"{self.member.name}--{file_name_of(self.images)}"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"images": setting.shifted.key(self.images)}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        loaded = load([node.member for node in group], setting, parents)
        data, device = setting.shifted, setting.engine.device
        sets = list(dict.fromkeys(node.images for node in group))
        batches = ((table, images.to(device)) for table, images in chain.from_iterable(map(data.batches, sets)))
        made = predict(setting, loaded, batches, sum(map(data.count, sets)), config.callbacks)
        return {
            node.name: ArtefactData({table: _half(made[node.member.name][table]) for table in tables_of(node.images)})
            for node in group
        }


def _half(logits: Tensor) -> Tensor:
    lowest = torch.finfo(torch.float16).min
    return (logits - logits.amax(dim=-1, keepdim=True)).clamp(min=lowest).half()


def shifted_tables(run: Run, members: Sequence[Member], others: Sequence[str]) -> dict[str, LogitTable]:
    """The predictions of members, all calibrated alike, by images; makes what is missing.

    "whole" are all test images, "clean" those that are corrupted, before they are; then come the tables of corrupted
    images and of other sets, see `tables_of`.
    """
    whole = run.answers(members)
    wanted = list(dict.fromkeys([*members, *(read for member in members for read in member.reads)]))
    kept = run.tensors([ShiftedLogits(member, images) for images in (CORRUPTED, *others) for member in wanted])
    numbers = run.setting.shifted.numbers
    labels = whole.test_labels[numbers]
    clean = whole.on({name: logits.index_select(-2, numbers) for name, logits in whole.test.items()}, labels)
    tables = {"whole": whole, "clean": clean}
    for images in (CORRUPTED, *others):
        for table in tables_of(images):
            test = {member.name: kept[ShiftedLogits(member, images).place][table] for member in wanted}
            count = next(iter(test.values())).shape[-2]
            # Of other sets no label is correct: -1 is an invalid class, so that scoring against it raises an error.
            tables[table] = whole.on(test, labels if images == CORRUPTED else torch.full((count,), -1))
    return tables


def shift_study(run: Run, others: Sequence[str] = ()) -> tuple[list[StudyTable], str]:
    """All rows on corrupted test images, and how well they detect out-of-distribution images.

    Args:
        run: the run that trains and evaluates the members.
        others: out-of-distribution sets, see `known_others`; by default, those that need no download.
    """
    names = known_others(others, run.recipe)
    # Rows of the results table: their members exist in a plain run.
    existing = {member.name for member in members_of(run.recipe)}
    rows = [row for row in row_plans(run.recipe) if existing.issuperset(row.members)]
    members = [parse_member(name) for name in dict.fromkeys(name for row in rows for name in row.members)]
    shifted = _Shifted(rows, shifted_tables(run, members, names))
    severities = {**STEPS, "mean": EVERY}
    corruptions = {name: [f"{name}-{severity}" for severity in SEVERITIES] for name in CORRUPTIONS}
    tables = [
        shifted.means("NLL by severity", Column("NLL", 3, "down"), severities, _notes(run)),
        shifted.means("ACC by severity", Column("ACC", 1, "up"), severities),
        shifted.means("ECE by severity", Column("ECE", 3, "down"), severities),
        shifted.means("NLL by corruption, over all severities", Column("NLL", 3, "down"), corruptions),
        shifted.gains(),
        *map(shifted.detection, names),
    ]
    tables = [replace(table, title=f"{table.title}, {run.recipe.name}") for table in tables]
    return tables, shifted.figure()


class _Shifted:
    """Rows with the temperature, and the threshold of a cascade, fitted on clean validation images."""

    def __init__(self, rows: Sequence[Row], tables: Mapping[str, LogitTable]) -> None:
        self._rows, self._tables = rows, tables
        self._roles = {row.role: row for row in rows if row.role}
        self._thresholds: dict[str, float | None] = {}
        self._cells: dict[str, dict[str, dict[str, float]]] = {}
        for row in rows:
            cost = row.average_cost
            threshold = None if cost is None else tables["clean"].threshold(row.members, cost)
            self._thresholds[row.name] = threshold
            self._cells[row.name] = {
                name: score_cells(tables[name].score(row.members, threshold=threshold)) for name in ("clean", *EVERY)
            }

    def _predicted(self, row: Row, table: str) -> Tensor:
        return self._tables[table].calibrated(row.members, threshold=self._thresholds[row.name])

    def _mean(self, row: Row, score: str, tables: Sequence[str]) -> float:
        return fmean(self._cells[row.name][table][score] for table in tables)

    def means(
        self, title: str, score: Column, groups: Mapping[str, Sequence[str]], notes: Sequence[str] = ()
    ) -> StudyTable:
        """A score of every row, averaged over groups of tables."""
        columns = (Column("FLOPs", 2), *(replace(score, name=name) for name in groups))
        cells = {
            row.name: {
                "FLOPs": Cell(self._mean(row, "FLOPs", ["clean"])),
                **{name: Cell(self._mean(row, score.name, tables)) for name, tables in groups.items()},
            }
            for row in self._rows
        }
        return StudyTable(title, columns, cells, tuple(notes))

    def gains(self) -> StudyTable:
        """The reduction in NLL of each row relative to one network, on clean and on corrupted images."""
        one, two = self._roles["one"], self._roles["two"]

        def surprise(row: Row, tables: Sequence[str]) -> Tensor:
            labels = self._tables["clean"].test_labels
            return torch.stack([surprisals(self._predicted(row, table), labels) for table in tables]).mean(0)

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
        (table,) = tables_of(other)
        rows: dict[str, dict[str, Cell]] = {}
        for row in self._rows:
            ours, theirs = self._predicted(row, "whole"), self._predicted(row, table)
            rows[row.name] = {}
            for by, confidence in (("", _top), (" by entropy", _negative_entropy)):
                pair = confidence(ours), confidence(theirs)
                rows[row.name] |= {f"AUROC{by}": Cell(auroc(*pair)), f"FPR95 %{by}": Cell(100 * fpr_at(*pair))}
        columns = (
            *(Column("AUROC", 3, "up"), Column("FPR95 %", 1, "down")),
            *(Column("AUROC by entropy", 3, "up"), Column("FPR95 % by entropy", 1, "down")),
        )
        label, counts = label_of(other), [len(self._tables[images].test_labels) for images in ("whole", table)]
        what = f"{label}: {BUILT_IN[other]}, not a natural set. " if other in BUILT_IN else ""
        note = (
            f"{what}{counts[0]:,} test images against {counts[1]:,} others, by the top "
            "calibrated probability. FPR95: share of the others that are accepted when 95 % of the test images are."
        )
        return StudyTable(f"Test images against {label}", columns, rows, (note,))

    def figure(self) -> str:
        """Scores by severity: one and two networks, and the last row of every family."""
        last = {row.family: row for row in self._rows}
        chosen = [row for row in self._rows if row.role in ("one", "two") or row in last.values()]
        one, xs = self._roles["one"], [float(step) for step in range(len(STEPS))]

        def lines(score: str, base: Row | None = None) -> dict[str, tuple[list[float], list[float]]]:
            """Scores by row; with a base, the reduction relative to it, which is 0 for the base itself."""

            def at(row: Row, tables: Sequence[str]) -> float:
                value = self._mean(row, score, tables)
                return value if base is None else self._mean(base, score, tables) - value

            return {row.name: (xs, [at(row, tables) for tables in STEPS.values()]) for row in chosen}

        panels = [("ACC, %", lines("ACC")), ("NLL", lines("NLL")), ("NLL below one network's", lines("NLL", one))]
        return lines_figure("severity, 0: clean images", panels)


def _top(probabilities: Tensor) -> Tensor:
    return probabilities.amax(dim=1)


def _negative_entropy(probabilities: Tensor) -> Tensor:
    negative: Tensor = torch.special.xlogy(probabilities, probabilities).sum(dim=1)
    return negative


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
