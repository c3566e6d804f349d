"""The rows of the results table on corrupted images, and their detection of out-of-distribution images."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Self

import torch

from modebridge.members import ArtefactData, Made, Member, Parents, Setting, members_of, row_plans
from modebridge.recipes import known_others
from modebridge.recipes.data import BATCH
from modebridge.recipes.shifted import CORRUPTED, SEVERITIES, STRENGTHS, label_of, tables_of
from modebridge.report import Cell, Column, StudyTable, colors_of, lines_figure
from modebridge.runs import Run
from modebridge.runs.logits import MemberLogits, predict, with_reads
from modebridge.scoring import LogitTable, auroc
from modebridge.studies.sheet import score_cells
from modebridge.training import TrainConfig

SCORES = (
    Column("NLL", 3, "down"),
    Column("ACC", 1, "up"),
    Column("ECE", 3, "down"),
    Column("coverage", 1),
    Column("set size", 2),
    Column("AUROC", 3, "up"),
)
"""One table for each."""


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
        return f"{self.member.name}--{re.sub(r'[^A-Za-z0-9_.]+', '-', label_of(self.images))}"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"images": setting.shifted.key(self.images)}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        loaded = {one: one.load(setting, parents) for one in with_reads([node.member for node in group])}
        data, device = setting.shifted, setting.engine.device
        sets = list(dict.fromkeys(node.images for node in group))
        total = sum(math.ceil(len(data.images(name)) / BATCH) * len(tables_of(name)) for name in sets)
        batches = chain.from_iterable(data.batches(name, device) for name in sets)
        made = predict(setting, loaded, batches, total, config.callbacks)
        results: Made = {}
        for node in group:
            logits = {table: made[node.member.name][table] for table in tables_of(node.images)}
            below = {table: one - one.amax(dim=-1, keepdim=True) for table, one in logits.items()}
            results[node.name] = ArtefactData({table: one.half() for table, one in below.items()})
        return results


def shifted_tables(run: Run, members: Sequence[Member], others: Sequence[str] = ()) -> dict[str, LogitTable]:
    """The logits of members on shifted images, all calibrated on the same validation images; makes what is missing.

    "clean" are the test images that are corrupted, before they are; then come the tables of corrupted images, such as
    "noise-1", and those of other sets by their labels, see `tables_of`.
    """
    whole = run.answers(members)
    wanted = with_reads(members)
    kept = run.tensors([ShiftedLogits(member, images) for images in (CORRUPTED, *others) for member in wanted])
    numbers = run.setting.shifted.numbers
    labels = whole.test_labels[numbers]
    clean = {name: logits.index_select(-2, numbers) for name, logits in whole.test.items()}
    tables = {"clean": whole.on(clean, labels)}
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
    sets = known_others(others, run.recipe)
    # Rows of the results table: their members exist in a plain run.
    existing = {member.name: member for member in members_of(run.recipe)}
    rows = [row for row in row_plans(run.recipe) if all(name in existing for name in row.members)]
    members = dict.fromkeys(existing[name] for row in rows for name in row.members)
    tables = shifted_tables(run, list(members), sets)
    clean, corrupted, labels = tables["clean"], tables_of(CORRUPTED), [label_of(name) for name in sets]
    steps = {"clean": ["clean"], **{str(k): corrupted[k - 1 :: len(SEVERITIES)] for k in SEVERITIES}, "mean": corrupted}
    cells: dict[str, dict[str, dict[str, Cell]]] = {score.name: {} for score in SCORES}
    # Like temperatures, the threshold of a cascade is that of clean images.
    limits = {row: None if row.average_cost is None else clean.threshold(row.members, row.average_cost) for row in rows}
    rows.sort(key=lambda row: clean.score(row.members, threshold=limits[row]).cost.relative_flops)
    for row in rows:
        limit, scored = limits[row], {}
        for name in ["clean", *corrupted]:
            found = tables[name].score(row.members, threshold=limit)
            scored[name] = score_cells(found) | {"coverage": 100 * found.coverage, "set size": found.set_size}
        for score in (one.name for one in SCORES if one.name != "AUROC"):
            means = {step: fmean(scored[name][score] for name in group) for step, group in steps.items()}
            cells[score][row.name] = {step: Cell(mean) for step, mean in means.items()}
        sure = {name: tables[name].calibrated(row.members, threshold=limit).amax(dim=1) for name in ["clean", *labels]}
        cells["AUROC"][row.name] = {label: Cell(auroc(sure["clean"], sure[label])) for label in labels}
    low, high = run.setting.shifted.span
    notes = {
        "NLL": f"{len(clean.test_labels):,} test images, black as {low:.2f} and white as {high:.2f}, averaged over "
        f"{', '.join(STRENGTHS)} (Hendrycks and Dietterich, 2019), calibrated on clean validation images. The figure "
        "has one and two networks, and of every other kind the row that costs most.",
        "coverage": "Of sets that are fitted for a coverage of 90 % on clean validation images: what they promise "
        "holds for images like these, not for corrupted ones.",
        "AUROC": "Of the top probability.",
    }
    results: list[StudyTable] = []
    for one in SCORES:
        kind, names = ("against other images", labels) if one.name == "AUROC" else ("by severity", list(steps))
        columns, title = tuple(replace(one, name=name) for name in names), f"{one.name} {kind}, {run.recipe.name}"
        said = (notes[one.name],) if one.name in notes else ()
        results.append(StudyTable(title[0].upper() + title[1:], columns, cells[one.name], said))
    last = {row.family: row for row in rows if row.family != rows[0].family}
    chosen = [row.name for row in rows if row.role in ("one", "two") or row in last.values()]
    xs = [0.0, *map(float, SEVERITIES)]
    panels = [
        (title, {row: (xs, [cells[score][row][step].mean for step in steps if step != "mean"]) for row in chosen})
        for score, title in (("ACC", "accuracy, %"), ("NLL", "NLL"))
    ]
    return results, lines_figure("severity, 0: clean images", panels, colors=colors_of(rows))
