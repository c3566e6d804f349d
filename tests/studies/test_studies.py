"""Every study on small digits: its rows, its files, and that nothing is trained twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from modebridge.errors import ModebridgeError
from modebridge.members import Member, parse_member
from modebridge.recipes import Recipe, find_recipe
from modebridge.runs import Run, RunFolder, ensemble_of, run_recipe
from modebridge.scoring import LogitTable, MemberCost
from modebridge.studies import STUDIES, paper_tables, run_study, write_study
from modebridge.studies.sheet import Sheet, paper_numbers, runs
from tests.runs.small import finished, small

ROWS = {
    "type1": ["DE-1", "DE-1 + 1 bridge I small", "DE-1 + 2 bridges I medium", "DE-1 + 2 Bezier", "DE-3"],
    "type2": ["DE-2", "DE-2 + 1 bridge II small", "DE-3 + 3 bridges II medium", "DE-3 + 3 Bezier"],
    "correspondence": ["Match type I bridge", "Other type II bridge", "Other Bezier"],
    "r-position": ["DE-2", "DE-2 + r = 0.1", "DE-2 + r = 0.9"],
    "r-ablation": ["DE-1", "DE-1 + bridge I at r = 0.1", "DE-1 + bridge I at r = 1"],
    "bridge-size": ["widths / 8", "widths / 1"],
    "type-mix": ["DE-2", "DE-2 + 1 II + 2 I", "DE-3 + 3 II + 3 I"],
    "mode-choice": ["High", "High + 2 bridges I", "Low + 2 bridges I"],
    "swa": ["DE-3", "SWA", "DE-3 (SWA)", "SWA + 2 bridges I medium", "DE-2 (SWA) + 1 bridge II small"],
    "comparison": ["one network", "distilled network", "SWA", "MIMO, 2 members", "BatchEnsemble, 4 members"],
    "shift": ["one network", "one network + 2 bridges", "three networks"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished(tmp_path_factory.mktemp("studies") / "run")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("type1", "correspondence")))
        for name in sorted(STUDIES)
    ],
)
def test_a_study_has_its_rows_and_files(folder: RunFolder, name: str) -> None:
    part = run_study(name, Run(small(), folder=folder))
    rows = {name: cells for table in part.tables for name, cells in table.rows.items()}
    assert set(ROWS[name]) <= set(rows)
    assert not any("[" in table.markdown() for table in part.tables), "the recipe is not the paper's"
    for cells in rows.values():
        if "NLL" in cells:
            assert cells["NLL"].mean > 0
        if "R2" in cells:
            assert cells["R2"].mean <= 1
    place = write_study(part, folder)
    assert {file.name for file in place.iterdir()} == {"table.md", "table.json", "table.csv", "figure.svg"}
    assert json.loads((place / "table.json").read_text())["name"] == name
    assert (place / "figure.svg").read_text().startswith("<?xml")
    # Everything is there now: a second time nothing is trained.
    again = Run(small(), folder=folder)
    assert [table.to_dict() for table in run_study(name, again).tables] == [table.to_dict() for table in part.tables]
    assert not again.trained


@pytest.mark.slow
def test_bridges_of_the_study_swa_stand_on_swa_networks_and_can_be_exported(folder: RunFolder) -> None:
    run_study("swa", Run(small(), folder=folder))
    assert {"curves/swa-0-1", "swa/0", "bridges/swa-I-0-1-small"} <= set(folder.places())
    ensemble, notes = ensemble_of(folder, ["swa-0", "swa-I-0-1-small"])
    assert (len(ensemble.bases), len(ensemble.bridges)) == (1, 1)
    assert notes["names"] == ["swa-0", "swa-I-0-1-small"]


def test_scores_are_those_of_the_ensemble(folder: RunFolder) -> None:
    """A row of a study equals the same row of the run's own table, which has other code behind it."""
    result = run_recipe(small(), folder=folder)
    own = {row.name: row for row in result.rows}
    table = run_study("type1", Run(small(), folder=folder)).tables[0]
    last = "DE-1 + 2 bridges I small"
    assert table.rows[last]["NLL"].mean == pytest.approx(own["one network + 2 bridges"].scores.nll)
    assert table.rows[last]["NLL"].std is None, "both runs have the same two partners: one measurement, no spread"
    assert table.rows[last]["FLOPs"].mean == pytest.approx(own["one network + 2 bridges"].scores.cost.relative_flops)


def test_the_papers_numbers_stand_beside_its_recipes_only() -> None:
    recipe = find_recipe("tin200")
    assert paper_numbers("type1", recipe)["ResNet (DE-1) + 1 Bridge_sm"]["NLL"] == "1.478 ± 0.006"
    assert paper_numbers("type1", find_recipe("tin200-short")) == {}
    assert paper_numbers("type1", find_recipe("tin200-bn")) == {}
    assert paper_numbers("type1", replace(recipe, modes=6)) == {}


def test_the_papers_recipes_need_no_other_curves_than_they_name() -> None:
    """Type I bridges go from mode 0 to modes 1 to 5, type II between modes 0 to 4."""
    recipe = find_recipe("cifar10")
    named = set(recipe.curves())
    assert {(0, j) for order in runs(recipe, 6) for j in order[1:5]} <= named
    pairs = {(min(a, b), max(a, b)) for order in runs(recipe, 5) for a in order[:4] for b in order[:4] if a != b}
    assert pairs <= named


def test_the_papers_numbers_are_those_of_the_reference() -> None:
    reference = json.loads((Path(__file__).parents[1] / "references" / "paper.json").read_text())["tables"]
    ours = json.loads((Path(__file__).parents[2] / "src/modebridge/studies/paper.json").read_text())
    cells = [
        (ours[table][dataset][row][column].split(" ± ")[0], cell["printed"])
        for table, data in reference.items()
        for dataset, rows in data["datasets"].items()
        for row, columns in rows.items()
        for column, cell in columns.items()
    ]
    assert all(one == other for one, other in cells)
    assert len(cells) > 500


def test_the_deep_ensembles_of_the_papers_runs() -> None:
    """The sets that the authors' references were made from: four different ones of every size, over eight modes."""
    sheet = Sheet(Answering(find_recipe("cifar10")), runs(find_recipe("cifar10"), 6))  # type: ignore[arg-type]
    sets = {
        m: [{int(name.removeprefix("mode-")) for name in sheet.deep_ensemble(m, run)} for run in range(4)]
        for m in range(1, 8)
    }
    assert sets[1] == [{0}, {1}, {2}, {3}]
    assert sets[2] == [{0, 1}, {0, 2}, {0, 3}, {0, 4}]
    assert sets[4] == [{0, 1, 2, 3}, {0, 2, 3, 4}, {0, 3, 4, 5}, {0, 4, 5, 1}]
    assert sets[6] == [{0, 1, 2, 3, 4, 5}, {0, 2, 3, 4, 5, 6}, {0, 3, 4, 5, 6, 7}, {0, 4, 5, 6, 7, 1}]
    everything = set(range(8))
    assert sets[7] == [everything - {7}, everything - {1}, everything - {2}, everything - {3}]
    assert all(len(set(map(frozenset, four))) == 4 for four in sets.values())


@dataclass
class Answering:
    """A run whose members predict anything, at once."""

    recipe: Recipe

    def answers(self, members: Sequence[Member]) -> LogitTable:
        assert all(parse_member(member.name) == member for member in members)
        generator, labels = torch.Generator().manual_seed(0), torch.arange(8) % 3
        tables = {member.name: torch.randn(8, 3, generator=generator) for member in members}
        costs = {member.name: MemberCost(1.0, 1, tuple(read.name for read in member.reads)) for member in members}
        return LogitTable(valid=tables, test=tables, valid_labels=labels, test_labels=labels, costs=costs)


def test_the_papers_rows_stand_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_tables, "lines_figure", lambda *args, **options: "<svg></svg>")
    part = run_study("swa", Answering(find_recipe("tin200")))  # type: ignore[arg-type]
    rows = part.tables[0].rows
    printed = {name: cells["NLL"].paper for name, cells in rows.items() if cells["NLL"].paper}
    assert printed == {
        "SWA": "1.519 ± 0.01",
        "DE-2 (SWA)": "1.400 ± 0.003",
        "SWA + 1 bridge I small": "1.435 ± 0.004",
        "SWA + 2 bridges I small": "1.403 ± 0.003",
        "SWA + 3 bridges I small": "1.387 ± 0.001",
        "SWA + 1 bridge I medium": "1.422 ± 0.004",
        "SWA + 2 bridges I medium": "1.386 ± 0.004",
        "SWA + 3 bridges I medium": "1.369 ± 0.002",
        "SWA + 4 bridges I medium": "1.359 ± 0.001",
    }
    with pytest.raises(ModebridgeError, match="base to be sgd for the study swa"):
        run_study("swa", Answering(replace(small(), base="swa")))  # type: ignore[arg-type]
