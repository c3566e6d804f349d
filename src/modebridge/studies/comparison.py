"""One table of all methods: deep ensembles, bridges, students and all others, with their costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from modebridge.deploy.timing import measure, ratio
from modebridge.errors import ModebridgeError, plural
from modebridge.members import (
    METHODS,
    Member,
    RowPlan,
    Setting,
    base_epochs,
    members_of,
    parse_member,
    row_plans,
)
from modebridge.report import Cell, Column, StudyPart, StudyTable, TableRow, cost_figure, row_of
from modebridge.runs import Run, assembled, score_row
from modebridge.scoring import Combined, dee
from modebridge.studies.sheet import COLUMNS, paper_numbers

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
    answers = run.answers(list(dict.fromkeys(member for plan in plans for member in plan.members)))
    scored = {plan: score_row(plan, answers) for plan in plans}
    levels = [combined.nll for plan, combined in scored.items() if plan.family == plans[0].family]
    times = _times(run, scored)
    paper = {PAPER_ROWS[name][1]: cells for name, cells in printed.items()}
    rows = []
    for plan, combined in scored.items():
        values = {
            "FLOPs": combined.relative_flops,
            "#Params": combined.relative_params,
            "training": base_epochs(plan.members, run.setting),
            "time": times[plan],
            "ACC": 100 * combined.accuracy,
            "NLL": combined.nll,
            "ECE": combined.ece,
            "BS": combined.brier,
            "DEE": dee(combined.nll, levels),
        }
        paper_cells = paper.get(combined.members, {})
        cells = {name: Cell(value, None, paper_cells.get(name, "")) for name, value in values.items()}
        rows.append(TableRow(plan.name, cells))
    columns = (*COLUMNS[:2], Column("training", 0), Column("time", 2), *COLUMNS[2:])
    table = StudyTable(
        f"All methods, {run.recipe.name}",
        columns,
        tuple(rows),
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
    drawn = [
        row_of(plan.name, combined, dee(combined.nll, levels), plan.note, plan.family, plan.role)
        for plan, combined in scored.items()
    ]
    return StudyPart(
        "comparison", comparison_study.__doc__ or "", (table,), cost_figure(drawn, name="study-comparison")
    )


def _plans(setting: Setting, *, beside_paper: bool) -> tuple[list[RowPlan], list[str]]:
    """The rows that the network supports, and a note for each method that it does not."""
    recipe = replace(setting.recipe, methods=tuple(METHODS))
    usable = {member for member in members_of(recipe) if member.usable}
    plans = [plan for plan in row_plans(recipe) if usable.issuperset(plan.members)]
    if beside_paper:
        known = {tuple(member.name for member in plan.members) for plan in plans}
        plans += [
            RowPlan(name, members, members[0].family, (0,))
            for name, members in ((name, tuple(map(parse_member, names))) for name, names in PAPER_ROWS.values())
            if tuple(member.name for member in members) not in known
        ]
    notes: dict[str, None] = {}
    refused: dict[Member, str] = {}
    for member in dict.fromkeys(member for plan in plans for member in plan.members):
        try:
            member.cost(setting)
            base_epochs([member], setting)  # the settings may not allow it either
        except ModebridgeError as error:
            refused[member] = str(error)
    possible = []
    for plan in plans:
        reasons = [refused[member] for member in plan.members if member in refused]
        if reasons:
            notes[f"Left out: {plan.name}. {reasons[0]}"] = None
        else:
            possible.append(plan)
    return possible, list(notes)


def _times(run: Run, scored: Mapping[RowPlan, Combined]) -> dict[RowPlan, float]:
    """The time of each row relative to one network, in interleaved rounds; for cascades, the average."""
    # For cascades, the first member is also timed alone; sets shared by several rows are timed once.
    sets = [plan.members for plan in scored] + [plan.members[:1] for plan in scored if plan.average_cost is not None]
    calls = {tuple(member.name for member in members): members for members in sets}
    timings = measure({"\n".join(names): _call(run, members) for names, members in calls.items()}, SECONDS)
    unit = timings[next(iter(scored)).members[0].name]
    taken = {tuple(key.split("\n")): ratio(timing, unit).median for key, timing in timings.items()}
    return {
        plan: taken[combined.members[:1]] * (1 - combined.asked) + taken[tuple(combined.members)] * combined.asked
        if combined.threshold is not None
        else taken[tuple(combined.members)]
        for plan, combined in scored.items()
    }


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
