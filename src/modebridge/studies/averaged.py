"""The paper's study of bridges on SWA: averaged networks as modes, curves between them, and their bridges."""

from __future__ import annotations

from modebridge.errors import ModebridgeError, plural
from modebridge.members import BridgeMember, SwaMember
from modebridge.report import StudyPart, StudyTable, lines_figure
from modebridge.runs import Run
from modebridge.studies.sheet import Sheet, paper_numbers, runs

__all__ = ["swa"]

SWA = SwaMember.base


def swa(run: Run) -> StudyPart:
    """Bridges on SWA networks, compared with deep ensembles of plain and of averaged networks."""
    recipe = run.recipe
    if recipe.base != "sgd":
        raise ModebridgeError(
            f"Expected base to be sgd for the study swa, which compares both, but got '{recipe.base}'; set base=sgd."
        )
    # Members of both bases are in one run folder, since their names differ, so `advise` and `export` know them too. As
    # in the type I table, bridges go from mode 0 to modes 1 to 5.
    sheet = Sheet(run, runs(recipe, 6), min(recipe.modes, 7))
    most, every = min(4, recipe.modes - 1), range(len(sheet.orders))
    largest = min(4, recipe.modes)
    for m in range(1, largest + 1):
        sheet.add(f"DE-{m}", [sheet.deep_ensemble(m, number) for number in every])
    for m in range(1, largest + 1):
        name = "SWA" if m == 1 else f"DE-{m} (SWA)"
        sheet.add(
            name,
            [sheet.deep_ensemble(m, number, SWA) for number in every],
            "ResNet (SWA)" if m == 1 else name,
        )
    for size, short in (("small", "sm"), ("medium", "md")):
        for k in range(1, most + 1):
            sets = [
                [SwaMember(0), *(BridgeMember("I", 0, j, size, base=SWA) for j in order[1 : k + 1])]
                for order in sheet.orders
            ]
            sheet.add(f"SWA + {plural(k, 'bridge')} I {size}", sets, f"ResNet (SWA) + {k} Bridge_{short}")
    twos = [
        [*sheet.base(2, number, SWA), BridgeMember("II", order[0], order[1], base=SWA)]
        for number, order in enumerate(sheet.orders)
    ]
    sheet.add("DE-2 (SWA) + 1 bridge II small", twos)
    table = sheet.table(
        f"Bridges on SWA networks, {recipe.name}",
        paper=paper_numbers("swa", recipe),
        notes=(
            "SWA: the mean of the weights after each epoch of the last quarter of training, at a constant learning "
            "rate. The authors' code continues from that mean after each epoch, which is a different method.",
            "DEE is relative to deep ensembles of plain networks.",
        ),
    )
    return StudyPart("swa", swa.__doc__ or "", (table,), _figure(table))


def _figure(table: StudyTable) -> str:
    """Accuracy and NLL against FLOPs, one line per base, with and without bridges."""
    lines = {
        "deep ensembles": [row for row in table.rows if "SWA" not in row.name],
        "of SWA networks": [row for row in table.rows if "SWA" in row.name and "+" not in row.name],
    }
    for size in ("small", "medium"):
        bridged = [row for row in table.rows if row.name.startswith("SWA +") and row.name.endswith(size)]
        lines[f"SWA + bridges I {size}"] = [*lines["of SWA networks"][:1], *bridged]
    panels = [
        (
            column,
            {
                label: ([row.cells["FLOPs"].mean for row in rows], [row.cells[column].mean for row in rows])
                for label, rows in lines.items()
            },
        )
        for column in ("ACC", "NLL")
    ]
    return lines_figure("study-swa", "Accuracy and NLL against FLOPs", "FLOPs, relative to one network", panels)
