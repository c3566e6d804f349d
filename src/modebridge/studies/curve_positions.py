"""The paper's studies of positions on curves, and of the agreement between bridges and curves."""

from __future__ import annotations

from itertools import permutations

from modebridge.report import Column, StudyTable, cell_of, dots_figure, lines_figure
from modebridge.runs import Run
from modebridge.scoring import correspondence
from modebridge.studies.sheet import COLUMNS, Sheet, answers_of, midpoint, modes, paper_numbers


def correspondence_study(run: Run) -> tuple[list[StudyTable], str]:
    """Agreement between bridges and curves: R2 and KL to the midpoint of a curve, on the test split."""
    recipe = run.recipe
    partners = list(range(1, min(recipe.modes, 5)))
    pairs = list(permutations(partners, 2))
    plans: dict[str, list[tuple[str, str]]] = {}
    for kind in ("I", "II"):
        plans[f"Match type {kind} bridge"] = [(midpoint(0, j), f"{kind}-0-{j}-small") for j in partners]
        plans[f"Other type {kind} bridge"] = [(midpoint(0, j), f"{kind}-0-{k}-small") for j, k in pairs]
    plans["Other Bezier"] = [(midpoint(0, j), midpoint(0, k)) for j, k in pairs]
    plans["One end"] = [(midpoint(0, j), "mode-0") for j in partners]
    names = dict.fromkeys(name for compared in plans.values() for pair in compared for name in pair)
    answers = answers_of(run, names)
    tables = {name: answers.probabilities([name]) for name in names}
    printed = paper_numbers("correspondence", recipe)
    rows = {}
    for name, compared in plans.items():
        if compared:
            agreements = [correspondence(tables[target], tables[imitator]) for target, imitator in compared]
            paper_cells = printed.get(name, {})
            rows[name] = {
                "R2": cell_of([pair.r2 for pair in agreements], paper_cells.get("R2", "")),
                "R2 per class": cell_of([pair.r2_per_class for pair in agreements]),
                "KL": cell_of([pair.kl for pair in agreements], paper_cells.get("KL", "")),
            }
    columns = (Column("R2", 3, "up"), Column("R2 per class", 3, "up"), Column("KL", 3, "down"))
    note = "R2 weights classes by their variance in the target; the paper does not specify this (docs/scores.md)."
    table = StudyTable(f"Bridges against midpoints, {recipe.name}", columns, rows, (note,))
    panels = [(column, {column: {name: cells[column] for name, cells in rows.items()}}) for column in ("R2", "KL")]
    return [table], dots_figure(panels)


def r_position(run: Run) -> tuple[list[StudyTable], str]:
    """DE-2 plus networks on the curve between its modes: which positions help, and how many."""
    positions, order = [k / 10 for k in range(1, 10)], [0.5, 0.3, 0.7, 0.1, 0.9, 0.4, 0.6, 0.2, 0.8]
    alone, added = Sheet(run, [[0, 1]]), Sheet(run, [[0, 1]])
    for sheet in (alone, added):
        sheet.add("DE-2", [modes([0, 1])])
    for r in positions:
        alone.add(f"DE-2 + r = {r:g}", [[*modes([0, 1]), _on_curve(r)]])
    for k in range(1, len(order) + 1):
        added.add(f"+ {k}: r = {order[k - 1]:g}", [[*modes([0, 1]), *map(_on_curve, order[:k])]])
    one = alone.table("DE-2 and one network on the curve", COLUMNS[:6])
    many = added.table("DE-2 and several networks on the curve", COLUMNS[:6])
    scores, counts = ("ACC", "NLL"), [float(k) for k in range(len(order) + 1)]
    panels = [(f"{column}, one at r", {column: (positions, one.means(column)[1:])}) for column in scores]
    panels += [(f"{column}, one after another", {column: (counts, many.means(column))}) for column in scores]
    levels = {f"{column}, one at r": {"DE-2": one.means(column)[0]} for column in scores}
    return [one, many], lines_figure(["r", "r", "members added", "members added"], panels, levels)


def r_ablation(run: Run) -> tuple[list[StudyTable], str]:
    """Bridges for positions other than the midpoint; at r = 1, the target is the other mode."""
    positions = [k / 10 for k in range(1, 11)]
    sheet = Sheet(run, [list(range(run.recipe.modes))])
    sheet.add("DE-1", [["mode-0"]], "ResNet (DE-1)")
    bridges = {r: "I-0-1-small" + ("" if r == 0.5 else f"@{r:g}") for r in positions}
    targets = {r: _on_curve(r) if r < 1 else "mode-1" for r in positions}
    answers = answers_of(run, [*bridges.values(), *targets.values()])
    extra: dict[str, dict[str, float]] = {}
    for r, bridge in bridges.items():
        name = f"DE-1 + bridge I at r = {r:g}"
        closeness = correspondence(answers.probabilities([targets[r]]), answers.probabilities([bridge]))
        extra[name] = {"R2": closeness.r2, "KL": closeness.kl}
        sheet.add(name, [["mode-0", bridge]], f"ResNet (DE-1) + Bridge_sm (r={r:.1f})")
    columns = (Column("R2", 3, "up"), Column("KL", 3, "down"), *COLUMNS[2:])
    notes = ("One pair of modes. The paper's caption says batch norm, but the rows are of FRN networks.",)
    table = sheet.table("Bridges for other positions", columns, "r_ablation", notes, extra)
    bridged = list(table.rows)[1:]
    panels = [(column, {column: (positions, table.means(column, bridged))}) for column in ("R2", "NLL")]
    return [table], lines_figure("r", panels, {"NLL": {"DE-1": table.means("NLL")[0]}})


def _on_curve(r: float) -> str:
    return midpoint(0, 1) + ("" if r == 0.5 else f"@{r:g}")
