"""Study swa: both bases in one folder, and the paper's rows on the paper's recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.errors import ModebridgeError
from modebridge.members import Member, parse_member
from modebridge.modes import Mode
from modebridge.recipes import Recipe, find_recipe
from modebridge.runs import RunFolder, ensemble_of, read_answers
from modebridge.scoring import LogitTable, MemberCost
from modebridge.studies import paper_tables, run_study
from tests.runs.small import tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The study by the program, as small as can be."""
    folder = tmp_path_factory.mktemp("averaged") / "run"
    sizes = ["modes=2", "data.train=40", "data.valid=30", "data.test=60", "data.batch_size=20"]
    sizes += ["mode.epochs=2", "curve.epochs=1", "bridge.epochs=1"]
    with pytest.MonkeyPatch.context() as patch:
        # Drawing takes most of the time.
        patch.setattr(paper_tables, "lines_figure", lambda *args, **options: "<svg></svg>")
        arguments = [argument for size in sizes for argument in ("--set", size)]
        answer = CliRunner().invoke(app, ["study", "swa", "digits", *arguments, "--out", str(folder), "--json"])
    assert answer.exit_code == 0, answer.output
    return folder, answer.stdout


@pytest.mark.slow
def test_it_runs_by_the_program(made: tuple[Path, str]) -> None:
    rows = list(json.loads(made[1])[0]["rows"])
    assert rows == [
        "DE-1",
        "DE-2",
        "SWA",
        "DE-2 (SWA)",
        "SWA + 1 bridge I small",
        "SWA + 1 bridge I medium",
        "DE-2 (SWA) + 1 bridge II small",
    ]


@pytest.mark.slow
def test_its_bridges_stand_on_swa_networks_and_can_be_exported(made: tuple[Path, str]) -> None:
    folder = RunFolder(made[0], writes=False)
    assert {"curves/swa-0-1", "swa/0", "swa/1", "modes/0", "modes/1", "bridges/swa-I-0-1-small"} <= set(folder.places())
    assert not folder.places("aligned")
    assert "curves/0-1" not in folder.places(), "rows of plain networks have no bridges"
    members = ["swa-0", "swa-I-0-1-small"]
    assert set(members) <= set(read_answers(folder).test), "the advice knows them"
    ensemble, beside = ensemble_of(folder, members)
    assert (len(ensemble.bases), len(ensemble.bridges), beside["names"]) == (1, 1, members)
    swa, plain = (Mode.from_state_dict(ensemble.bases[0], folder.read(place)[0]) for place in ("swa/0", "modes/0"))
    assert Mode.from_module(ensemble.bases[0]).id == swa.id != plain.id
    assert list(ensemble.bridges[0].reads) == [swa.id]


@dataclass
class Answering:
    """A run whose members say anything, at once."""

    recipe: Recipe

    def answers(self, members: Sequence[Member]) -> LogitTable:
        generator = torch.Generator().manual_seed(0)
        assert all(parse_member(member.name) == member for member in members)
        tables = {member.name: torch.randn(8, 3, generator=generator) for member in members}
        costs = {member.name: MemberCost(1.0, 1, tuple(read.name for read in member.reads)) for member in members}
        labels = torch.arange(8) % 3
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
        run_study("swa", Answering(replace(tiny(), base="swa")))  # type: ignore[arg-type]
