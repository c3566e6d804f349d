"""The paper's tables: ensembles with bridges of both types and sizes, on SWA, and positions on the curves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, permutations

from modebridge.errors import ModebridgeError, plural
from modebridge.report import Column, StudyTable, cell_of, dots_figure, lines_figure
from modebridge.runs import Run
from modebridge.scoring import accuracy, correspondence
from modebridge.studies.sheet import COLUMNS, Names, Sheet, answers_of, modes, paper_numbers, runs

SIZES = {"small": "sm", "medium": "md"}
"""The sizes of bridges, and what the paper calls them."""


def type1(run: Run) -> tuple[list[StudyTable], str]:
    """One network with k type I bridges, compared with deep ensembles and with the midpoints of the curves."""
    # The authors' type I bridges go from mode 0 to modes 1 to 5.
    sheet, most = Sheet(run, runs(run.recipe, 6)), min(4, run.recipe.modes - 1)
    sheet.add_deep_ensemble(1, paper="ResNet (DE-1)")
    _add_type1(sheet, most)
    for k in range(1, most + 1):
        sheet.add(f"DE-1 + {k} Bezier", _on_first(sheet, k, "mode-0", "curve-0-{}"))
    for m in range(2, min(run.recipe.modes, 7) + 1):
        sheet.add_deep_ensemble(m, paper=f"DE-{m}")
    table = sheet.table(
        "Type I bridges",
        paper="type1",
        notes=(
            "Rows with bridges start from mode 0 and vary its partners; DE-1 varies the mode.",
            "#Params is the actual count; the paper divides bridges by three networks (docs/cost.md).",
        ),
    )
    counts = [float(k) for k in range(most + 1)]
    endings = {"bridges I small": "I small", "bridges I medium": "I medium", "Bezier": "Bezier"}
    lines = {label: (counts, ["DE-1", *_ending(table, ending)]) for label, ending in endings.items()}
    larger = [name for name in ("DE-2", "DE-3") if name in table.rows]
    levels = {column: dict(zip(larger, table.means(column, larger), strict=True)) for column in ("ACC", "NLL")}
    return [table], lines_figure("members added", _panels(table, lines), levels)


def _add_type1(sheet: Sheet, most: int, base: str = "mode") -> None:
    """Rows of one network with 1 to `most` type I bridges, small and medium."""
    network, prefix = ("DE-1", "") if base == "mode" else (base.upper(), f"{base}-")
    for size, short in SIZES.items():
        for k in range(1, most + 1):
            sets = _on_first(sheet, k, f"{base}-0", f"{prefix}I-0-{{}}-{size}")
            sheet.add(f"{network} + {plural(k, 'bridge')} I {size}", sets, f"ResNet ({network}) + {k} Bridge_{short}")


def _on_first(sheet: Sheet, k: int, first: str, name: str) -> list[Names]:
    """In each repetition the first network, with members named after its first k partners."""
    return [[first, *map(name.format, order[1 : k + 1])] for order in sheet.orders]


def _between(sheet: Sheet, m: int, name: str, most: int | None = None) -> list[Names]:
    """In each repetition the first m modes, with members named after pairs of them: the first ones, or all."""
    pairs = [list(combinations(order[:m], 2))[:most] for order in sheet.orders]
    return [
        [*modes(order[:m]), *(name.format(*sorted(pair)) for pair in some)]
        for order, some in zip(sheet.orders, pairs, strict=True)
    ]


def type2(run: Run) -> tuple[list[StudyTable], str]:
    """Deep ensembles with type II bridges between their modes, compared with the midpoints of the curves."""
    # The paper's tables put type II bridges between modes 0 to 4.
    sheet = Sheet(run, runs(run.recipe, 5))
    largest = len(sheet.orders[0])
    sheet.add_deep_ensemble(1)
    for m in range(2, min(4, largest) + 1):
        sheet.add_deep_ensemble(m, paper=f"DE-{m}")
        counts = {2: (1,), 3: (1, 2, 3), 4: (1, 2, 4, 6)}[m]
        for size, short in SIZES.items():
            for b in counts:
                sets = _between(sheet, m, f"II-{{}}-{{}}-{size}", b)
                sheet.add(f"DE-{m} + {plural(b, 'bridge')} II {size}", sets, f"DE-{m} + {b} Bridge_{short}")
        for b in counts:
            sheet.add(f"DE-{m} + {b} Bezier", _between(sheet, m, "curve-{}-{}", b))
    if largest > 4:
        sheet.add_deep_ensemble(5, paper="DE-5")
    table = sheet.table("Type II bridges", paper="type2", notes=("Bridges in the order 0-a, 0-b, 0-c, a-b, a-c, b-c.",))
    endings = {"+ bridges II small": "II small", "+ bridges II medium": "II medium", "+ Bezier": "Bezier"}
    return [table], _beside_ensembles(table, endings)


def type_mix(run: Run) -> tuple[list[StudyTable], str]:
    """Deep ensembles with type II bridges between their modes, and with additional type I bridges."""
    sheet = Sheet(run, runs(run.recipe, 5))
    for m in range(2, min(3, len(sheet.orders[0])) + 1):
        twos = _between(sheet, m, "II-{}-{}-small")
        # One type I bridge on each mode, toward the next.
        both = [
            [*two, *(f"I-{order[a]}-{order[(a + 1) % m]}-small" for a in range(m))]
            for two, order in zip(twos, sheet.orders, strict=True)
        ]
        b = m * (m - 1) // 2
        sheet.add_deep_ensemble(m, paper=f"DE-{m}")
        sheet.add(f"DE-{m} + {b} II", twos, f"DE-{m} + {b} Bridge_sm (II)")
        sheet.add(f"DE-{m} + {b} II + {m} I", both, f"DE-{m} + {b} Bridge_sm (II) + {m} Bridge_sm (I)")
    if len(sheet.orders[0]) > 3:
        sheet.add_deep_ensemble(4, paper="DE-4")
    table = sheet.table("Both types of bridges", paper="type_mix")
    return [table], _beside_ensembles(table, {"+ bridges II": " II", "+ bridges II and I": " I"})


def swa(run: Run) -> tuple[list[StudyTable], str]:
    """Bridges on SWA networks, compared with deep ensembles of plain and of averaged networks."""
    recipe = run.recipe
    if recipe.base != "sgd":
        raise ModebridgeError(
            f"Expected base to be sgd for the study swa, which compares both, but got '{recipe.base}'; set base=sgd."
        )
    # Members of both bases are in one run folder, since their names differ, so `advise` and `export` know them too. As
    # in the type I table, bridges go from mode 0 to modes 1 to 5.
    sheet = Sheet(run, runs(recipe, 6))
    largest = min(4, recipe.modes)
    for m in range(1, largest + 1):
        sheet.add_deep_ensemble(m)
    sheet.add_deep_ensemble(1, "SWA", "ResNet (SWA)", "swa")
    for m in range(2, largest + 1):
        sheet.add_deep_ensemble(m, f"DE-{m} (SWA)", f"DE-{m} (SWA)", "swa")
    _add_type1(sheet, min(4, recipe.modes - 1), "swa")
    twos = [[*modes(order[:2], "swa"), f"swa-II-0-{order[1]}-small"] for order in sheet.orders]
    sheet.add("DE-2 (SWA) + 1 bridge II small", twos)
    table = sheet.table(
        "Bridges on SWA networks",
        paper="swa",
        notes=(
            "SWA: the mean of the weights after each epoch of the last quarter of training, at a constant learning "
            "rate. The authors' code continues from that mean after each epoch, which is a different method.",
            "DEE is relative to deep ensembles of plain networks.",
        ),
    )
    lines = {
        "deep ensembles": [name for name in table.rows if "SWA" not in name],
        "of SWA networks": [name for name in table.rows if "SWA" in name and "+" not in name],
    }
    for size in SIZES:
        bridged = [name for name in _ending(table, size) if name.startswith("SWA +")]
        lines[f"SWA + bridges I {size}"] = ["SWA", *bridged]
    return [table], _against_flops(table, lines)


def bridge_size(run: Run) -> tuple[list[StudyTable], str]:
    """Type II bridges of several widths: how closely they match the midpoint, and the scores of DE-2 with each."""
    bridges = {slim: f"II-0-1-slim{slim}" for slim in (8, 4, 2, 1)}
    answers = answers_of(run, [*bridges.values(), "curve-0-1", *modes([0, 1])])
    target = answers.probabilities(["curve-0-1"])
    sheet = Sheet(run, [[0, 1]])
    extra: dict[str, dict[str, float]] = {}
    unit, spec = answers.costs["mode-0"], run.setting.network.spec
    width = spec.widths[-1] if spec is not None else 0  # only the paper prints rows by width
    for slim, bridge in bridges.items():
        name, cost = f"widths / {slim}", answers.costs[bridge]
        extra[name] = {
            "bridge FLOPs": cost.flops / unit.flops,
            "bridge #Params": cost.params / unit.params,
            "R2": correspondence(target, answers.probabilities([bridge])).r2,
        }
        sheet.add(name, [[*modes([0, 1]), bridge]], f"CNN {width // slim} ch")
    columns = (Column("bridge FLOPs", 4), Column("bridge #Params", 4), Column("R2", 3, "up"), *COLUMNS[2:6])
    notes = ["The paper's scores are probably of one network with a type I bridge: DE-2 alone has 76.21 and 0.928."]
    table = sheet.table("Sizes of a type II bridge", columns, "model_size", notes, extra)
    panels = _panels(table, {"bridge alone": (table.means("bridge FLOPs"), list(table.rows))}, ("R2", "NLL"))
    return [table], lines_figure("FLOPs of the bridge, relative to one network", panels)


def mode_choice(run: Run) -> tuple[list[StudyTable], str]:
    """Bridges on the best, the middle and the worst of three modes by validation accuracy."""
    count = min(3, run.recipe.modes)
    answers = answers_of(run, modes(range(count)))
    labels = answers.valid_labels
    accuracies = [accuracy(answers.probabilities([name], "valid"), labels) for name in modes(range(count))]
    ranked = sorted(range(count), key=lambda k: -accuracies[k])
    names = ["High", "Center", "Low"] if count == 3 else ["High", "Low"]
    sheet = Sheet(run, [list(range(count))])
    extra, rows = {}, {}
    for name, k in zip(names, ranked, strict=True):
        bridges = [f"I-{k}-{j}-small" for j in range(count) if j != k]
        rows[name] = f"{name} + {plural(len(bridges), 'bridge')} I"
        sheet.add(name, [modes([k])], f"ResNet ({name})")
        sheet.add(rows[name], [[*modes([k]), *bridges]], f"ResNet ({name}) + 2 Bridge_sm")
        extra[name] = {"valid ACC": 100 * accuracies[k]}
    notes = ("Modes are ranked by accuracy on the validation split.",)
    columns = (Column("valid ACC", 2), *COLUMNS[:6])
    table = sheet.table("The mode to start from", columns, "optimal_mode", notes, extra)
    groups = {"alone": {name: name for name in rows}, "with bridges": rows}
    panels = [
        (
            column,
            {label: {name: table.rows[row][column] for name, row in some.items()} for label, some in groups.items()},
        )
        for column in ("ACC", "NLL")
    ]
    return [table], dots_figure(panels)


def correspondence_study(run: Run) -> tuple[list[StudyTable], str]:
    """Agreement between bridges and curves: R2 and KL to the midpoint of a curve, on the test split."""
    partners = list(range(1, min(run.recipe.modes, 5)))
    pairs = list(permutations(partners, 2))
    plans: dict[str, list[tuple[str, str]]] = {}
    for kind in ("I", "II"):
        plans[f"Match type {kind} bridge"] = [(f"curve-0-{j}", f"{kind}-0-{j}-small") for j in partners]
        plans[f"Other type {kind} bridge"] = [(f"curve-0-{j}", f"{kind}-0-{k}-small") for j, k in pairs]
    plans["Other Bezier"] = [(f"curve-0-{j}", f"curve-0-{k}") for j, k in pairs]
    plans["One end"] = [(f"curve-0-{j}", "mode-0") for j in partners]
    names = dict.fromkeys(name for compared in plans.values() for pair in compared for name in pair)
    answers = answers_of(run, names)
    tables = {name: answers.probabilities([name]) for name in names}
    printed = paper_numbers("correspondence", run.recipe)
    rows = {}
    for name, compared in plans.items():
        if compared:
            agreements, paper = [correspondence(tables[a], tables[b]) for a, b in compared], printed.get(name, {})
            rows[name] = {
                "R2": cell_of([pair.r2 for pair in agreements], paper.get("R2", "")),
                "R2 per class": cell_of([pair.r2_per_class for pair in agreements]),
                "KL": cell_of([pair.kl for pair in agreements], paper.get("KL", "")),
            }
    columns = (Column("R2", 3, "up"), Column("R2 per class", 3, "up"), Column("KL", 3, "down"))
    note = "R2 weights classes by their variance (docs/scores.md). +- is over pairs; others are of another pair."
    table = StudyTable(f"Bridges against midpoints, {run.recipe.name}", columns, rows, (note,))
    panels = [(column, {column: {name: cells[column] for name, cells in rows.items()}}) for column in ("R2", "KL")]
    return [table], dots_figure(panels)


def r_position(run: Run) -> tuple[list[StudyTable], str]:
    """DE-2 plus networks on the curve between its modes: which positions help, and how many."""
    positions, order = [k / 10 for k in range(1, 10)], [0.5, 0.3, 0.7, 0.1, 0.9, 0.4, 0.6, 0.2, 0.8]
    alone, added = Sheet(run, [[0, 1]]), Sheet(run, [[0, 1]])
    for sheet in (alone, added):
        sheet.add("DE-2", [modes([0, 1])])
    for r in positions:
        alone.add(f"DE-2 + r = {r:g}", [[*modes([0, 1]), _at("curve-0-1", r)]])
    for k, r in enumerate(order, start=1):
        added.add(f"+ {k}: r = {r:g}", [[*modes([0, 1]), *(_at("curve-0-1", one) for one in order[:k])]])
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
    bridges = {r: _at("I-0-1-small", r) for r in positions}
    targets = {r: _at("curve-0-1", r) if r < 1 else "mode-1" for r in positions}
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
    panels = [(column, {column: (positions, table.means(column, list(extra)))}) for column in ("R2", "NLL")]
    return [table], lines_figure("r", panels, {"NLL": {"DE-1": table.means("NLL")[0]}})


def _at(name: str, r: float) -> str:
    """The name of a member for another position than the midpoint."""
    return name if r == 0.5 else f"{name}@{r:g}"


def _ending(table: StudyTable, ending: str) -> list[str]:
    return [name for name in table.rows if name.endswith(ending)]


def _panels(
    table: StudyTable, lines: Mapping[str, tuple[Sequence[float], Names]], columns: Names = ("ACC", "NLL")
) -> list[tuple[str, dict[str, tuple[Sequence[float], list[float]]]]]:
    """The panels of a figure, one per column: the means of rows over a number, for each line."""
    return [
        (column, {label: (xs, table.means(column, names)) for label, (xs, names) in lines.items()})
        for column in columns
    ]


def _beside_ensembles(table: StudyTable, endings: Mapping[str, str]) -> str:
    """Deep ensembles as a line, other rows as points, grouped by how their names end."""
    groups = {"deep ensembles": [name for name in table.rows if "+" not in name]}
    groups |= {label: _ending(table, ending) for label, ending in endings.items()}
    return _against_flops(table, groups, unordered=endings)


def _against_flops(table: StudyTable, groups: Mapping[str, Names], unordered: Collection[str] = ()) -> str:
    """Accuracy and NLL of groups of rows, each a line unless unordered."""
    lines = {label: (table.means("FLOPs", names), names) for label, names in groups.items() if names}
    return lines_figure("FLOPs, relative to one network", _panels(table, lines), unordered=unordered)
