"""Everything in one table: deep ensembles, bridges, students and every other method, each with all that it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from modebridge.deploy.timing import measure, ratio
from modebridge.errors import ModebridgeError
from modebridge.evaluate import Combined, dee
from modebridge.members import (
    METHODS,
    Blueprint,
    BridgeMember,
    DistilledMember,
    Member,
    RowPlan,
    base_epochs,
    members_of,
    parse_member,
    row_plans,
)
from modebridge.recipes import Recipe
from modebridge.report import Cell, Column, StudyPart, StudyTable, TableRow, cost_figure, row_of
from modebridge.runs import Run, assembled, score_row
from modebridge.studies.sheet import COLUMNS, paper_numbers

__all__ = ["comparison_study"]

BATCH = 64
"""Images per call where time is measured."""
SECONDS = 0.3
"""For which each row is timed."""

_ONES = ("I-0-1-small", "I-0-2-small", "I-0-3-small")

PAPER_ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ResNet (DE-1)": ("DE-1", ("mode-0",)),
    **{f"ResNet (DE-1) + {k} Bridge_sm": (f"DE-1 + {k} bridges I", ("mode-0", *_ONES[:k])) for k in (1, 2, 3)},
    "DE-2": ("DE-2", ("mode-0", "mode-1")),
    "DE-3": ("DE-3", ("mode-0", "mode-1", "mode-2")),
    **{f"BE-{m}": (f"BatchEnsemble, {m} members", (f"batch-ensemble-{m}",)) for m in (2, 3, 4)},
    "MIMO (M = 2)": ("MIMO, 2 members, width x2", ("mimo-2-x2",)),
    "ResNet (SWA)": ("SWA", ("swa-0",)),
    **{
        f"ResNet (SWA) + {k} Bridge_sm": (f"SWA + {k} bridges I", ("swa-0", *(f"swa-{one}" for one in _ONES[:k])))
        for k in (1, 2, 3)
    },
    **{f"ResNet (KD from DE-{m})": (f"student of DE-{m}", (f"student-{m}",)) for m in (2, 3)},
}
"""The rows of the paper's comparison: ours, and its members. They are added where the paper's numbers are shown."""


def comparison_study(run: Run) -> StudyPart:
    """Every method on the same data: what it costs to run and to train, and what it is worth."""
    printed = paper_numbers("comparison", run.recipe)
    plans, notes = _plans(run.context, beside_paper=bool(printed))
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
            "training": base_epochs(plan.members, run.context),
            "time": times[plan],
            "ACC": 100 * combined.accuracy,
            "NLL": combined.nll,
            "ECE": combined.ece,
            "BS": combined.brier,
            "DEE": dee(combined.nll, levels),
        }
        beside = paper.get(combined.members, {})
        rows.append(TableRow(plan.name, {name: Cell(one, None, beside.get(name, "")) for name, one in values.items()}))
    columns = (*COLUMNS[:2], Column("training", 0), Column("time", 2), *COLUMNS[2:])
    table = StudyTable(
        f"All methods, {run.recipe.name}",
        columns,
        tuple(rows),
        (
            "FLOPs, #Params and time in networks: counted, true, and measured here, in PyTorch with "
            f"{BATCH} images per call on {run.context.engine.device.type}; of cascades the average.",
            "Training: in epochs of one network, counted, with all that a row is made from (teachers, curves, modes).",
            "NLL, ECE and BS after a temperature that is fitted on validation images.",
            *(["The paper's MIMO FLOPs are half of the count."] if printed else []),
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


def _plans(context: Blueprint, *, beside_paper: bool) -> tuple[list[RowPlan], list[str]]:
    """The rows that the network allows, and a sentence for each method that it does not."""
    recipe = replace(context.recipe, methods=tuple(METHODS))
    usable = {member for member in members_of(recipe) if member.usable}
    plans = [plan for plan in row_plans(recipe) if usable.issuperset(plan.members)]
    plans += _on_students(recipe)
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
            member.cost(context)
            base_epochs([member], context)  # settings may not allow it either
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


def _on_students(recipe: Recipe) -> list[RowPlan]:
    """Bridges between students, on the first of them."""
    if recipe.base == "distilled":
        return []
    base, partners = DistilledMember.base, [j for i, j in recipe.curves() if i == 0]
    bridge = BridgeMember("I", 0, partners[0], recipe.sizes[0], base=base)
    return [
        RowPlan(
            f"student of DE-{recipe.modes} + 1 bridge I",
            (DistilledMember(0), bridge),
            "distilled with bridges",
            (0,),
            "the curve goes to a second student",
        )
    ]


def _times(run: Run, scored: Mapping[RowPlan, Combined]) -> dict[RowPlan, float]:
    """How long each row takes, in networks, measured side by side; of a cascade the average."""
    # Of a cascade also its first member alone; what several rows need is timed once.
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
    """A forward pass of some members on a batch, which is over when it returns."""
    device = run.context.engine.device
    image = run.context.network.image
    assert image is not None  # answers are of images: `Blueprint.example` refuses others
    images = torch.rand(BATCH, *image, generator=torch.Generator().manual_seed(0)).to(device)
    predictors = {member.name: run.load(member).to(device) for member in members}
    (only, *others) = predictors.values()
    if not others and isinstance(only.module(), str) and not only.networks:
        # What draws at random is no module, but it can be asked.
        forward: Callable[[], object] = lambda: only.heads(images, {})  # noqa: E731
    else:
        ensemble = assembled(run.context, predictors).to(device)
        forward = lambda: ensemble(images)  # noqa: E731

    @torch.no_grad()
    def call() -> None:
        forward()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return call
