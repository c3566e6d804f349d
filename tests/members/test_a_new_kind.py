"""A new kind of member is one class in one file: the table, the page, exports and other processes know it."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from modebridge.cli.app import app
from modebridge.errors import ModebridgeError
from modebridge.members import KINDS, Setting, members_of, parse_member
from modebridge.recipes import user_code
from modebridge.runs import Job, RunFolder, ensemble_of, find_recipe_of, make_job, read_answers
from modebridge.runs.logits import Logits
from tests.runs.small import tiny

FILE = Path(__file__).with_name("guess_recipe.txt")
"""The user's file; pytest would import a .py, and register its kind for all tests."""


def forget() -> None:
    """As in a process that has not read the recipe."""
    KINDS[:] = [kind for kind in KINDS if not kind.__module__.startswith(user_code.USER)]
    user_code._LOADED.clear()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("kind") / "run"
    recipe = shutil.copy(FILE, folder.parent / "guess_recipe.py")
    result = CliRunner().invoke(app, ["run", str(recipe), "--out", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    forget()
    yield folder
    forget()


def test_it_is_in_the_table_and_on_the_page(run: Path) -> None:
    answers = read_answers(RunFolder(run))
    assert answers.test["guess"].shape == (2, len(answers.test_labels), 10)
    rows = {row["name"]: row for row in json.loads((run / "results.json").read_text())["rows"]}
    # Each head counts once: two classes share what is certain, eight the rest.
    shares = torch.full((10,), 1 / (torch.e**3 + 9), dtype=torch.float64)
    shares[[2, 7]] = (torch.e**3 + 1) / (torch.e**3 + 9) / 2
    assert rows["a guess"]["raw_nll"] == pytest.approx(float(-shares[answers.test_labels].log().mean()), abs=1e-6)
    assert "| a guess |" in (run / "results.md").read_text()
    assert "a guess" in (run / "report.html").read_text()


def test_it_is_exported_alone(run: Path) -> None:
    ensemble, _ = ensemble_of(run, ["guess"])
    assert ensemble(torch.rand(3, 1, 8, 8)).argmax(-1).tolist() in ([2] * 3, [7] * 3)
    with pytest.raises(ModebridgeError, match="Expected 'guess' to be exported alone"):
        ensemble_of(run, ["mode-0", "guess"])


def test_the_run_names_the_file_that_registers_it(run: Path) -> None:
    forget()
    assert "guess" not in {member.name for member in members_of(tiny())}
    with pytest.raises(ModebridgeError, match="such as mode-0"):
        parse_member("guess")
    assert f'members_file = "{run.parent / "guess_recipe.py"}"' in (run / "recipe.toml").read_text()
    steps = json.loads(CliRunner().invoke(app, ["run", "--out", str(run), "--plan", "--json"]).stdout)
    assert any("guess" in step["there"] for step in steps)
    assert all(step["missing"] == [] for step in steps)


def test_another_process_can_make_its_jobs(run: Path) -> None:
    recipe, seed = find_recipe_of(RunFolder(run, writes=False))
    pickled = pickle.dumps((Setting(recipe, seed), Job((Logits(parse_member("guess")),), (), "key")))
    forget()
    setting, job = pickle.loads(pickled)
    assert (setting.recipe, job.nodes[0].name) == (recipe, "guess")
    assert make_job(job, setting, {})["guess"].tensors["test"].shape[0] == 2
