"""One table of all methods: deep ensembles, bridges, students and all others, with their costs."""

from __future__ import annotations

from dataclasses import replace

from modebridge.errors import ModebridgeError, plural
from modebridge.members import METHODS, Setting, base_epochs, members_of, parse_member, row_plans
from modebridge.members.network import networks
from modebridge.report import Cell, Column, StudyTable, cost_figure
from modebridge.runs import Run
from modebridge.scoring import Row
from modebridge.studies.sheet import COLUMNS, answers_of, paper_numbers, score_cells

_ONES = ("I-0-1-small", "I-0-2-small", "I-0-3-small")

PAPER_ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ResNet (DE-1)": ("one network", ("mode-0",)),
    **{
        f"ResNet (DE-1) + {k} Bridge_sm": (f"one network + {plural(k, 'bridge')}", ("mode-0", *_ONES[:k]))
        for k in (1, 2, 3)
    },
    "DE-2": ("two networks", ("mode-0", "mode-1")),
    "DE-3": ("three networks", ("mode-0", "mode-1", "mode-2")),
    **{f"BE-{m}": (f"BatchEnsemble, {m} members", (f"batch-ensemble-{m}",)) for m in (2, 3, 4)},
    "MIMO (M = 2)": ("MIMO, 2 members, width x2", ("mimo-2-x2",)),
    "ResNet (SWA)": ("SWA", ("swa-0",)),
    **{
        f"ResNet (SWA) + {k} Bridge_sm": (
            f"SWA + {plural(k, 'bridge')}",
            ("swa-0", *(f"swa-{name}" for name in _ONES[:k])),
        )
        for k in (1, 2, 3)
    },
    **{f"ResNet (KD from DE-{m})": (f"distilled from {networks(m)}", (f"student-{m}",)) for m in (2, 3)},
}
"""The rows of the paper's comparison: our name and the members. They are added if the paper's numbers are shown."""


def comparison_study(run: Run) -> tuple[list[StudyTable], str]:
    """All methods on the same data: scores, and the cost of inference and training."""
    printed = paper_numbers("comparison", run.recipe)
    plans, notes = _plans(run.setting, beside_paper=bool(printed))
    rows = answers_of(run, [name for row in plans for name in row.members]).score_rows(plans)
    paper = {PAPER_ROWS[name][1]: cells for name, cells in printed.items()}
    cells = {}
    for row in rows:
        values = {
            "training": base_epochs([parse_member(name) for name in row.members], run.setting),
            **score_cells(row.scores),
        }
        paper_cells = paper.get(row.members, {})
        cells[row.name] = {name: Cell(value, None, paper_cells.get(name, "")) for name, value in values.items()}
    columns = (*COLUMNS[:2], Column("training", 0), *COLUMNS[2:])
    table = StudyTable(
        f"All methods, {run.recipe.name}",
        columns,
        cells,
        (
            "FLOPs and #Params: counted, in multiples of one network; of cascades, averages over images.",
            "Training: counted, in epochs of one network, including everything a row depends on (teachers, curves, "
            "modes).",
            "NLL, ECE and BS: calibrated with a temperature fitted on the validation split.",
            *(["The MIMO FLOPs in the paper are half of the actual count."] if printed else []),
            *notes,
        ),
    )
    return [table], cost_figure(rows)


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
