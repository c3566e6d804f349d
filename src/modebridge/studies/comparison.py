"""One table of all methods: deep ensembles, bridges, students and all others, with their costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from modebridge.deploy.timing import measure, ratio
from modebridge.errors import ModebridgeError, plural
from modebridge.members import (
    METHODS,
    Member,
    Setting,
    base_epochs,
    members_of,
    parse_member,
    row_plans,
)
from modebridge.report import Cell, Column, StudyPart, StudyTable, cost_figure
from modebridge.runs import Run, assembled
from modebridge.scoring import Row
from modebridge.studies.sheet import COLUMNS, paper_numbers, score_cells

__all__ = ["comparison_study"]

BATCH = 64
"""Batch size of the time measurements."""
SECONDS = 0.3
"""Time per row of the time measurements."""

_ONES = ("I-0-1-small", "I-0-2-small", "I-0-3-small")

PAPER_ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ResNet (DE-1)": ("DE-1", ("mode-0",)),
    **{
        f"ResNet (DE-1) + {k} Bridge_sm": (f"DE-1 + {plural(k, 'bridge')} I", ("mode-0", *_ONES[:k])) for k in (1, 2, 3)
    },
    "DE-2": ("DE-2", ("mode-0", "mode-1")),
    "DE-3": ("DE-3", ("mode-0", "mode-1", "mode-2")),
    **{f"BE-{m}": (f"BatchEnsemble, {m} members", (f"batch-ensemble-{m}",)) for m in (2, 3, 4)},
    "MIMO (M = 2)": ("MIMO, 2 members, width x2", ("mimo-2-x2",)),
    "ResNet (SWA)": ("SWA", ("swa-0",)),
    **{
        f"ResNet (SWA) + {k} Bridge_sm": (
            f"SWA + {plural(k, 'bridge')} I",
            ("swa-0", *(f"swa-{name}" for name in _ONES[:k])),
        )
        for k in (1, 2, 3)
    },
    **{f"ResNet (KD from DE-{m})": (f"student of DE-{m}", (f"student-{m}",)) for m in (2, 3)},
}
"""The rows of the paper's comparison: our name and the members. They are added if the paper's numbers are shown."""


def comparison_study(run: Run) -> StudyPart:
    """All methods on the same data: scores, and the cost of inference and training."""
    printed = paper_numbers("comparison", run.recipe)
    plans, notes = _plans(run.setting, beside_paper=bool(printed))
    answers = run.answers([parse_member(name) for name in dict.fromkeys(name for row in plans for name in row.members)])
    rows = answers.score_rows(plans)
    times = _times(run, rows)
    paper = {PAPER_ROWS[name][1]: cells for name, cells in printed.items()}
    cells = {}
    for row in rows:
        values = {
            "training": base_epochs([parse_member(name) for name in row.members], run.setting),
            "time": times[row.name],
            **score_cells(row.scores),
        }
        paper_cells = paper.get(row.members, {})
        cells[row.name] = {name: Cell(value, None, paper_cells.get(name, "")) for name, value in values.items()}
    columns = (*COLUMNS[:2], Column("training", 0), Column("time", 2), *COLUMNS[2:])
    table = StudyTable(
        f"All methods, {run.recipe.name}",
        columns,
        cells,
        (
            "FLOPs, #Params and time: multiples of one network. FLOPs and parameters are counted; time is measured in "
            f"PyTorch at batch size {BATCH} on {run.setting.engine.device.type}. Cascades: averages over images.",
            "Training: counted, in epochs of one network, including everything a row depends on (teachers, curves, "
            "modes).",
            "NLL, ECE and BS: calibrated with a temperature fitted on the validation split.",
            *(["The MIMO FLOPs in the paper are half of the actual count."] if printed else []),
            *notes,
        ),
    )
    return StudyPart("comparison", comparison_study.__doc__ or "", (table,), cost_figure(rows))


def _plans(setting: Setting, *, beside_paper: bool) -> tuple[list[Row], list[str]]:
    """The rows that the network supports, and a note for each method that it does not."""
    recipe = replace(setting.recipe, methods=tuple(METHODS))
    usable = {member.name for member in members_of(recipe) if member.usable}
    plans = [row for row in row_plans(recipe) if usable.issuperset(row.members)]
    if beside_paper:
        known = {row.members for row in plans}
        plans += [
            Row(name, members, parse_member(members[0]).family)
            for name, members in PAPER_ROWS.values()
            if members not in known
        ]
    refused: dict[str, str] = {}
    for name in dict.fromkeys(name for row in plans for name in row.members):
        try:
            member = parse_member(name)
            member.cost(setting)
            base_epochs([member], setting)  # the settings may not allow it either
        except ModebridgeError as error:
            refused[name] = str(error)
    left = {row.name: [refused[name] for name in row.members if name in refused] for row in plans}
    notes = [f"Left out: {name}. {reasons[0]}" for name, reasons in left.items() if reasons]
    return [row for row in plans if not left[row.name]], notes


def _times(run: Run, rows: Sequence[Row]) -> dict[str, float]:
    """The time of each row relative to one network, in interleaved rounds; for cascades, the average."""
    # For cascades, the first member is also timed alone; sets shared by several rows are timed once.
    sets = [row.members for row in rows] + [row.members[:1] for row in rows if row.average_cost is not None]
    calls = {"\n".join(names): _call(run, [parse_member(name) for name in names]) for names in sets}
    timings = measure(calls, SECONDS)
    taken = {key: ratio(timing, timings[rows[0].members[0]]).median for key, timing in timings.items()}
    times = {}
    for row in rows:
        share, whole = row.scores.deferred_share, taken["\n".join(row.members)]
        times[row.name] = whole if share == 1 else share * whole + (1 - share) * taken[row.members[0]]
    return times


def _call(run: Run, members: Sequence[Member]) -> Callable[[], object]:
    """A forward pass of some members on a batch; it returns when the pass is done."""
    device = run.setting.engine.device
    image = run.setting.network.image
    assert image is not None  # `Setting.example` refuses inputs other than images
    images = torch.rand(BATCH, *image, generator=torch.Generator().manual_seed(0)).to(device)
    predictors = {member.name: run.load(member).to(device) for member in members}
    (only, *others) = predictors.values()
    if not others and isinstance(only.module(), str) and not only.networks:
        # Members that draw at random are not modules, but they can predict.
        forward: Callable[[], object] = partial(only.heads, images, {})
    else:
        forward = partial(assembled(run.setting, predictors).to(device), images)

    @torch.no_grad()
    def call() -> None:
        forward()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return call
