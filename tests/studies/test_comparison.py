"""The study of all methods: its rows, what they cost, and what is left out with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modebridge.members import METHODS, Setting, parse_member
from modebridge.recipes import find_recipe
from modebridge.runs import Run
from modebridge.studies import comparison, run_study
from modebridge.studies.comparison import PAPER_ROWS
from modebridge.studies.sheet import paper_numbers
from tests.runs.small import tiny


@pytest.mark.slow
def test_rows_costs_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the methods; all of them are in test_studies.py."""
    monkeypatch.setattr(comparison, "METHODS", {"distilled": METHODS["distilled"]})
    (table,) = run_study("comparison", Run(replace(tiny(), student_epochs=1), seed=1)).tables
    rows = {row: {name: cell.mean for name, cell in cells.items()} for row, cells in table.rows.items()}
    assert {"one network", "two networks"} <= rows.keys()
    assert "SWA" not in rows
    assert (rows["two networks"]["training"], rows["two networks"]["FLOPs"]) == (pytest.approx(2), 2.0)
    # Two modes of one epoch, and one epoch of the student and its two teachers.
    assert rows["distilled network"]["training"] == pytest.approx(2 + 1 + 2 / 3)
    assert 1 < rows["cascade of two networks"]["FLOPs"] < 2


def test_the_papers_rows_have_members() -> None:
    assert list(paper_numbers("comparison", find_recipe("tin200"))) == list(PAPER_ROWS)
    assert all(parse_member(name).name == name for _, names in PAPER_ROWS.values() for name in names)


@pytest.mark.slow  # counts every network of Tiny ImageNet
def test_the_papers_rows_stand_beside_ours() -> None:
    recipe = replace(find_recipe("tin200"), methods=tuple(METHODS))
    plans, notes = comparison._plans(Setting(recipe), beside_paper=True)
    rows = {row.members for row in plans}
    assert {names for _, names in PAPER_ROWS.values()} <= rows
    assert len({row.name for row in plans}) == len(plans)
    assert notes == []
