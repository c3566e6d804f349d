"""Tables: the same numbers for a terminal, as Markdown and JSON."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from modebridge.errors import ModebridgeError
from modebridge.report import Cell, Column, StudyTable, as_dicts, cell_of, csv_of
from modebridge.report.tables import dee_cells, markdown_table, study_table, terminal_table
from modebridge.scoring import Cost, Row, Scored


def row(name: str, nll: float, *, flops: float = 1.05, family: str = "", role: str = "", **more: Any) -> Row:
    """A scored row; deep ensembles have as many members as their name says."""
    roles = {"DE-1": "one", "DE-2": "two", "DE-1 + 1 bridge I": "bridge", "DE-1 + 1 label control": "control"}
    members = tuple(f"mode-{k}" for k in range(int(name[3]))) if name.startswith("DE-") else (name,)
    scores = {"accuracy": 1 - nll / 4, "nll": nll, "ece": 0.02, "brier": 0.1, "temperature": 1.0}
    scores |= {f"raw_{name}": scores[name] for name in ("nll", "ece", "brier")}
    scored = Scored(members=members, n=100, cost=Cost(flops, 10, flops, 1.08), **scores, **more)
    family = family or ("networks" if name in ("DE-1", "DE-2") else name.rpartition(" ")[2])
    return Row(name, members, family, role=role or roles.get(name, ""), scored=scored)


TABLE = StudyTable(
    "A & B",
    (Column("ACC", 2, "up"), Column("NLL", 3, "down"), Column("R2", 3)),
    {
        "one_1": {"ACC": cell_of([90.0, 92.0]), "NLL": Cell(0.5, None, "0.51 ± 0.01")},
        "two": {"ACC": Cell(89.0), "NLL": Cell(math.inf)},
    },
    ("A note.",),
)


def text_of(table: object, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_study_tables_in_all_forms() -> None:
    markdown = TABLE.markdown()
    assert "| one_1 | **91.00** ± 1.00 | **0.500** [0.51 ± 0.01] |  |" in markdown
    assert "| two | 89.00 | - |  |" in markdown
    assert "A note." in markdown
    assert "In brackets: the paper's number." in markdown
    again = StudyTable.from_dict(json.loads(json.dumps(TABLE.to_dict())))
    assert again.markdown() == markdown
    assert "91.00 ± 1.00" in text_of(study_table(TABLE))
    assert csv_of(TABLE.records()).splitlines() == [
        "table,row,ACC,ACC spread,NLL",
        "A & B,one_1,91.0,1.0,0.5",
        "A & B,two,89.0,,inf",
    ]
    assert TABLE.means("ACC") == [91.0, 89.0]


@pytest.mark.parametrize(
    "damage", [{"rows": []}, {"columns": [{"name": "a", "digits": 99, "better": ""}]}, {"title": None, "notes": 3}]
)
def test_what_is_no_table_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ModebridgeError, match="Expected the table of a study"):
        StudyTable.from_dict({**TABLE.to_dict(), **damage})


def test_the_results_table_in_all_forms() -> None:
    rows = [row("DE-1", 0.4), row("DE-2", 0.3, flops=2.0, dee=2.0, intervals={"gain": (0.05, 0.15)})]
    lines = markdown_table(rows).splitlines()
    assert lines[0] == "| members | cost | params | ACC % | NLL | ECE | Brier | DEE |"
    assert lines[-1] == "| DE-2 | x2.00 | x1.08 | 92.5 | 0.300 | 0.020 | 0.100 | 2.00 |"
    beyond = [row("DE-2", 0.3, dee=1.0), row("better", 0.2, dee=3.1), row("worse", 0.5, dee=0.7)]
    assert [*dee_cells(beyond).values()] == ["1.00", ">2", "<1"], "no more is known than that"
    # No reference, or DE-2 worse than DE-1, has no number to print.
    assert lines[-2].endswith("| - |")
    shown = text_of(terminal_table(rows, dict.fromkeys((row.name for row in rows), 220.0)), 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "220 epochs" in shown
    assert "epochs" not in text_of(terminal_table(rows, {}), 80)
    plain = as_dicts(rows)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain[0]["dee"], plain[1]["relative_flops"]) == (None, 2.0)
    assert plain[1]["gain_interval"] == [0.05, 0.15]
