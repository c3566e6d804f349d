"""The paper's studies of positions on curves, and of the agreement between bridges and curves."""

from __future__ import annotations

from itertools import permutations

from modebridge.members import BridgeMember, Member, ModeMember, PointMember
from modebridge.report import Column, StudyPart, StudyTable, cell_of, dots_figure, lines_figure
from modebridge.runs import Run
from modebridge.scoring import correspondence
from modebridge.studies.sheet import COLUMNS, Sheet, paper_numbers

__all__ = ["correspondence_study", "r_ablation", "r_position"]

POSITIONS = [k / 10 for k in range(11)]


def correspondence_study(run: Run) -> StudyPart:
    """Agreement between bridges and curves: R2 and KL to the midpoint of a curve, on the test split."""
    recipe = run.recipe
    partners = list(range(1, min(recipe.modes, 5)))
    members: list[Member] = [*(PointMember(0, j) for j in partners), ModeMember(0)]
    members += [BridgeMember(kind, 0, j) for kind in ("I", "II") for j in partners]
    answers = run.answers(members)
    tables = {member.name: answers.probabilities([member.name]) for member in members}
    pairs = list(permutations(partners, 2))
    plans: list[tuple[str, list[tuple[str, str]]]] = []
    for kind in ("I", "II"):
        matching = [(PointMember(0, j).name, BridgeMember(kind, 0, j).name) for j in partners]
        others = [(PointMember(0, j).name, BridgeMember(kind, 0, k).name) for j, k in pairs]
        plans += [(f"Match type {kind} bridge", matching), (f"Other type {kind} bridge", others)]
    plans.append(("Other Bezier", [(PointMember(0, j).name, PointMember(0, k).name) for j, k in pairs]))
    plans.append(("One end", [(PointMember(0, j).name, ModeMember(0).name) for j in partners]))
    printed = paper_numbers("correspondence", recipe)
    rows = {}
    for name, compared in plans:
        if not compared:
            continue
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
    return StudyPart("correspondence", correspondence_study.__doc__ or "", (table,), dots_figure(panels))


def r_position(run: Run) -> StudyPart:
    """DE-2 plus networks on the curve between its modes: which positions help, and how many."""
    recipe = run.recipe
    alone = Sheet(run, [[0, 1]])
    base = [ModeMember(0), ModeMember(1)]
    alone.add("DE-2", [base])
    for r in POSITIONS[1:-1]:
        alone.add(f"DE-2 + r = {r:g}", [[*base, PointMember(0, 1, r)]])
    added = Sheet(run, [[0, 1]])
    added.add("DE-2", [base])
    order = [0.5, 0.3, 0.7, 0.1, 0.9, 0.4, 0.6, 0.2, 0.8]
    for k in range(1, len(order) + 1):
        added.add(f"+ {k}: r = {order[k - 1]:g}", [[*base, *(PointMember(0, 1, r) for r in order[:k])]])
    columns = COLUMNS[:6]
    one = alone.table(f"DE-2 and one network on the curve, {recipe.name}", columns)
    many = added.table(f"DE-2 and several networks on the curve, {recipe.name}", columns)
    scores, counts = ("ACC", "NLL"), [float(k) for k in range(len(order) + 1)]
    panels = [(f"{column}, one at r", {column: (POSITIONS[1:-1], one.means(column)[1:])}) for column in scores]
    panels += [(f"{column}, one after another", {column: (counts, many.means(column))}) for column in scores]
    levels = {f"{column}, one at r": {"DE-2": one.means(column)[0]} for column in scores}
    along = ["r", "r", "members added", "members added"]
    figure = lines_figure(along, panels, levels)
    return StudyPart("r-position", r_position.__doc__ or "", (one, many), figure)


def r_ablation(run: Run) -> StudyPart:
    """Bridges for positions other than the midpoint; at r = 1, the target is the other mode."""
    recipe, positions = run.recipe, POSITIONS[1:]
    sheet = Sheet(run, [list(range(recipe.modes))])
    sheet.add("DE-1", [[ModeMember(0)]], "ResNet (DE-1)")
    bridges = {r: BridgeMember("I", 0, 1, r=r) for r in positions}
    targets = {r: PointMember(0, 1, r) if r < 1 else ModeMember(1) for r in positions}
    answers = run.answers([*bridges.values(), *targets.values()])
    extra: dict[str, dict[str, float]] = {}
    for r, member in bridges.items():
        name = f"DE-1 + bridge I at r = {r:g}"
        closeness = correspondence(answers.probabilities([targets[r].name]), answers.probabilities([member.name]))
        extra[name] = {"R2": closeness.r2, "KL": closeness.kl}
        sheet.add(name, [[ModeMember(0), member]], f"ResNet (DE-1) + Bridge_sm (r={r:.1f})")
    columns = (Column("R2", 3, "up"), Column("KL", 3, "down"), *COLUMNS[2:])
    notes = ("One pair of modes. The paper's caption says batch norm, but the rows are of FRN networks.",)
    printed = paper_numbers("r_ablation", recipe)
    table = sheet.table(f"Bridges for other positions, {recipe.name}", columns, printed, notes, extra)
    bridged = list(table.rows)[1:]
    panels = [(column, {column: (list(positions), table.means(column, bridged))}) for column in ("R2", "NLL")]
    levels = {"NLL": {"DE-1": table.means("NLL")[0]}}
    figure = lines_figure("r", panels, levels)
    return StudyPart("r-ablation", r_ablation.__doc__ or "", (table,), figure)
