"""The paper's tables of bridged ensembles: type I, type II, both, on SWA, bridge sizes, which mode to start from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from modebridge.errors import ModebridgeError, plural
from modebridge.report import Column, StudyTable, dots_figure, lines_figure
from modebridge.runs import Run
from modebridge.scoring import accuracy, r2
from modebridge.studies.sheet import COLUMNS, Names, Sheet, answers_of, midpoint, modes, runs

SIZES = {"small": "sm", "medium": "md"}
"""The sizes of bridges, and what the paper calls them."""


def type1(run: Run) -> tuple[list[StudyTable], str]:
    """One network with k type I bridges, compared with deep ensembles and with the midpoints of the curves."""
    recipe = run.recipe
    # The authors' type I bridges go from mode 0 to modes 1 to 5.
    sheet = Sheet(run, runs(recipe, 6))
    most = min(4, recipe.modes - 1)
    sheet.add_deep_ensemble(1, paper="ResNet (DE-1)")
    _add_type1(sheet, most)
    for k in range(1, most + 1):
        sheet.add(f"DE-1 + {k} Bezier", [["mode-0", *(midpoint(0, j) for j in o[1 : k + 1])] for o in sheet.orders])
    for m in range(2, min(recipe.modes, 7) + 1):
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
    levels = {
        column: {name: table.rows[name][column].mean for name in ("DE-2", "DE-3") if name in table.rows}
        for column in ("ACC", "NLL")
    }
    return [table], lines_figure("members added", _panels(table, lines), levels)


def _add_type1(sheet: Sheet, most: int, base: str = "mode") -> None:
    """Rows of one network with 1 to `most` type I bridges, small and medium."""
    network, prefix = ("DE-1", "") if base == "mode" else (base.upper(), f"{base}-")
    for size, short in SIZES.items():
        for k in range(1, most + 1):
            sets = [[f"{base}-0", *(f"{prefix}I-0-{j}-{size}" for j in order[1 : k + 1])] for order in sheet.orders]
            name = f"{network} + {plural(k, 'bridge')} I {size}"
            sheet.add(name, sets, f"ResNet ({network}) + {k} Bridge_{short}")


def type2(run: Run) -> tuple[list[StudyTable], str]:
    """Deep ensembles with type II bridges between their modes, compared with the midpoints of the curves."""
    # The paper's tables put type II bridges between modes 0 to 4.
    sheet = Sheet(run, runs(run.recipe, 5))
    largest = len(sheet.orders[0])
    sheet.add_deep_ensemble(1)
    for m in range(2, min(4, largest) + 1):
        sheet.add_deep_ensemble(m, paper=f"DE-{m}")
        pairs = [list(combinations(order[:m], 2)) for order in sheet.orders]
        counts = [b for b in (1, 2, 3, 4, 6) if b <= len(pairs[0]) and not (m == 4 and b == 3)]
        for size, short in SIZES.items():
            for b in counts:
                sets = _with_type2(sheet, m, size, b)
                sheet.add(f"DE-{m} + {plural(b, 'bridge')} II {size}", sets, f"DE-{m} + {b} Bridge_{short}")
        for b in counts:
            sets = [
                [*modes(order[:m]), *(midpoint(*pair) for pair in some[:b])]
                for order, some in zip(sheet.orders, pairs, strict=True)
            ]
            sheet.add(f"DE-{m} + {b} Bezier", sets)
    if largest > 4:
        sheet.add_deep_ensemble(5, paper="DE-5")
    notes = ("Bridges in the order 0-a, 0-b, 0-c, a-b, a-c, b-c.",)
    table = sheet.table("Type II bridges", paper="type2", notes=notes)
    endings = {"+ bridges II small": "II small", "+ bridges II medium": "II medium", "+ Bezier": "Bezier"}
    return [table], _beside_ensembles(table, endings)


def _with_type2(sheet: Sheet, m: int, size: str = "small", most: int | None = None) -> list[list[str]]:
    """The first m modes of each repetition, with the first type II bridges between them; None for all."""
    return [
        [
            *modes(order[:m]),
            *(f"II-{min(pair)}-{max(pair)}-{size}" for pair in list(combinations(order[:m], 2))[:most]),
        ]
        for order in sheet.orders
    ]


def type_mix(run: Run) -> tuple[list[StudyTable], str]:
    """Deep ensembles with type II bridges between their modes, and with additional type I bridges."""
    sheet = Sheet(run, runs(run.recipe, 5))
    for m in range(2, min(3, len(sheet.orders[0])) + 1):
        twos = _with_type2(sheet, m)
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
    slims = [8, 4, 2, 1]
    names = [*(f"II-0-1-slim{slim}" for slim in slims), midpoint(0, 1), *modes([0, 1])]
    answers = answers_of(run, names)
    target = answers.probabilities([midpoint(0, 1)])
    sheet = Sheet(run, [[0, 1]])
    extra: dict[str, dict[str, float]] = {}
    unit = answers.costs["mode-0"]
    spec = run.setting.network.spec
    width = spec.widths[-1] if spec is not None else 0  # only the paper prints rows by width
    for slim, bridge in zip(slims, names, strict=False):
        name, cost = f"widths / {slim}", answers.costs[bridge]
        extra[name] = {
            "bridge FLOPs": cost.flops / unit.flops,
            "bridge #Params": cost.params / unit.params,
            "R2": r2(target, answers.probabilities([bridge])),
        }
        sheet.add(name, [[*modes([0, 1]), bridge]], f"CNN {width // slim} ch")
    columns = (Column("bridge FLOPs", 4), Column("bridge #Params", 4), Column("R2", 3, "up"), *COLUMNS[2:6])
    table = sheet.table("Sizes of a type II bridge", columns, "model_size", extra=extra)
    panels = _panels(table, {"bridge alone": (table.means("bridge FLOPs"), list(table.rows))}, ("R2", "NLL"))
    return [table], lines_figure("FLOPs of the bridge, relative to one network", panels)


def mode_choice(run: Run) -> tuple[list[StudyTable], str]:
    """Bridges on the best, the middle and the worst of three modes by validation accuracy."""
    count = min(3, run.recipe.modes)
    answers = answers_of(run, modes(range(count)))
    accuracies = [
        accuracy(answers.probabilities([name], "valid"), answers.valid_labels) for name in modes(range(count))
    ]
    ranked = sorted(range(count), key=lambda k: -accuracies[k])
    names = ["High", "Center", "Low"] if count == 3 else ["High", "Low"]
    sheet = Sheet(run, [list(range(count))])
    extra = {}
    for name, k in zip(names, ranked, strict=True):
        bridges = [f"I-{k}-{j}-small" for j in range(count) if j != k]
        sheet.add(name, [modes([k])], f"ResNet ({name})")
        bridged = f"{name} + {plural(len(bridges), 'bridge')} I"
        sheet.add(bridged, [[*modes([k]), *bridges]], f"ResNet ({name}) + 2 Bridge_sm")
        extra[name] = {"valid ACC": 100 * accuracies[k]}
    table = sheet.table(
        "The mode to start from",
        (Column("valid ACC", 2), *COLUMNS[:6]),
        "optimal_mode",
        ("Modes are ranked by accuracy on the validation split.",),
        extra,
    )
    groups = {
        "alone": {name: cells for name, cells in table.rows.items() if "+" not in name},
        "with bridges": {name.partition(" + ")[0]: cells for name, cells in table.rows.items() if "+" in name},
    }
    panels = [
        (column, {label: {mode: cells[column] for mode, cells in rows.items()} for label, rows in groups.items()})
        for column in ("ACC", "NLL")
    ]
    return [table], dots_figure(panels)


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
