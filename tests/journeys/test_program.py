"""The installed program as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import modebridge
from modebridge import ModebridgeError
from modebridge.cli.app import app
from modebridge.cli.boundary import run_program
from modebridge.recipes import RECIPES
from tests.runs.small import small


def program(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "modebridge", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def main_of(monkeypatch, capsys, *arguments):
    """Exit code, stdout and stderr of the whole program, in this process: a new one takes seconds to start."""
    monkeypatch.setattr("modebridge.cli.terminal.leave", sys.exit)
    with pytest.raises(SystemExit) as left:
        run_program(arguments)
    return left.value.code, *capsys.readouterr()


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setitem(RECIPES, "digits", small)
    monkeypatch.setenv("COLUMNS", "80")


def advise_of(out, budget):
    return json.loads(invoke("advise", str(out), "--budget", str(budget), "--json").stdout)["chosen"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run, made once by the program itself."""
    out = tmp_path_factory.mktemp("program") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "digits", small)
        answer = invoke("run", "--out", str(out))
    assert answer.exit_code == 0, answer.output
    return out, answer


def test_version():
    answer = program("--version")
    assert answer.returncode == 0
    assert answer.stdout == f"{modebridge.__version__}\n"
    assert answer.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "cifar"), "Expected a known recipe, but got 'cifar'; did you mean "),
        (("run", "--set", "mode.epoch=3"), "got 'mode.epoch'; did you mean mode.epochs"),
        (("run", "cifar10-short", "--data", "/nowhere"), "Expected CIFAR-10 in '/nowhere'"),
        (("study", "typo"), "Expected a known study, but got 'typo'"),
        (("report", "/nowhere"), "to be a run folder"),
        (("advise", "/nowhere"), "to be a run folder"),
        (("run", "mine.toml"), "no such file"),
        (("cost", "--set", "data.name=foo"), "to be a known data set, folder:PATH or FILE.py:FUNCTION, but got 'foo'"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_no_trace(arguments, message, tmp_path, monkeypatch, capsys):
    out = ("--out", str(tmp_path / "run")) if arguments[0] in ("run", "study") else ()
    code, stdout, stderr = main_of(monkeypatch, capsys, *arguments, *out)
    assert code == 2
    assert message in stderr.replace("\n", " ")
    assert "Traceback" not in stderr
    assert stdout == ""


def test_a_wrong_option_is_explained_and_exits_with_2():
    """As a process of its own, like the next two: there nothing but the program can catch an error."""
    answer = program("run", "--nonsense")
    assert answer.returncode == 2
    assert "--nonsense" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("verb", [("run",), ("study", "type1")])
def test_a_failure_leaves_no_folder_that_it_made(verb, tmp_path):
    fails = (*verb, "cifar10-short", "--data", "/nowhere", "--out")
    assert isinstance(invoke(*fails, str(tmp_path / "runs" / "c10")).exception, ModebridgeError)
    assert list(tmp_path.iterdir()) == []
    # A folder that was there stays, empty or not.
    (tmp_path / "own").mkdir()
    assert isinstance(invoke(*fails, str(tmp_path / "own")).exception, ModebridgeError)
    assert (tmp_path / "own").is_dir()


def test_a_failure_keeps_what_was_made(quick, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ModebridgeError("as a full disk would")

    monkeypatch.setattr("modebridge.members.curve_weights.fit_curves", fail)
    assert "full disk" in str(invoke("run", "--out", str(tmp_path / "run"), "--set", "modes=2").exception)
    assert (tmp_path / "run" / "modes" / "0" / "weights.safetensors").is_file()
    assert (tmp_path / "run" / "recipe.toml").is_file()


def test_out_that_cannot_be_a_folder_is_said_before_training(tmp_path):
    (tmp_path / "file").write_text("x")
    answer = program("run", "--out", str(tmp_path / "file"))
    assert answer.returncode == 2
    assert "to be a folder to write to" in answer.stderr.replace("\n", " ")


def test_help_names_the_verbs():
    answer = program("--help")
    assert answer.returncode == 0
    assert all(verb in answer.stdout for verb in ("run", "recipes", "study", "cost", "report", "advise"))


def test_the_public_names_exist():
    assert all(hasattr(modebridge, name) for name in modebridge.__all__)


def test_a_run_says_where_its_report_is(folder):
    out, answer = folder
    assert "DE-2 + 1 bridge II" in answer.stdout
    assert "What you just saw" in answer.stdout
    assert f"Report: {out / 'report.html'}" in answer.stdout
    assert "modes: done" in answer.stderr
    names = {file.name for file in out.iterdir()}
    assert {"recipe.toml", "results.json", "results.md", "report.html", "modes", "curves", "bridges"} <= names
    data = json.loads((out / "results.json").read_text())
    assert len(data["rows"]) == 11
    assert data["trained"]
    assert {file.name for file in (out / ".work").iterdir()} == {"lock"}


@pytest.mark.slow
def test_the_second_time_nothing_is_trained(quick, folder):
    out, _ = folder
    before = (out / "modes" / "0" / "meta.json").stat().st_mtime_ns
    answer = invoke("run", "--out", str(out), "--json")
    assert answer.exit_code == 0
    assert "Nothing to train" in answer.stderr
    record = json.loads(answer.stdout)
    assert record["trained"] == []
    assert record["seconds"], "how long it took when it was trained"
    assert (out / "modes" / "0" / "meta.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_page_is_written_again(quick, folder):
    out, _ = folder
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert invoke("report", str(out)).exit_code == 0
    assert (out / "report.html").read_text() == page


@pytest.mark.slow
def test_a_study_as_data(quick, folder):
    out, _ = folder
    found = json.loads(invoke("study", "mode-choice", "--out", str(out), "--json").stdout)
    assert next(iter(found[0]["rows"])) == "High"


@pytest.mark.slow
def test_a_study_from_the_command_line(quick, folder):
    out, _ = folder
    answer = invoke("study", "mode-choice", "--out", str(out))
    assert answer.exit_code == 0, answer.output
    assert "High + 2 bridges I" in answer.stdout
    assert "Study: mode-choice" in (out / "report.html").read_text()


@pytest.mark.slow
def test_a_study_keeps_to_the_folders_settings(folder, tmp_path):
    """Without a recipe on the command line a folder's own is used, and nothing is trained anew for another."""
    out, _ = folder
    before = (out / "recipe.toml").read_text()
    answer = invoke("study", "correspondence", "--out", str(out))
    assert answer.exit_code == 0, answer.output
    assert "Using settings from" in answer.stderr
    assert (out / "recipe.toml").read_text() == before


@pytest.mark.slow
def test_given_modes_stay(quick, folder, tmp_path):
    out, _ = folder
    there = tmp_path / "given"
    first = invoke("run", "--out", str(there), "--modes", str(out / "modes"), "--json")
    assert first.exit_code == 0, first.output
    assert not any(name.startswith("modes") for name in json.loads(first.stdout)["trained"])
    meta = (there / "modes" / "0" / "meta.json").read_text()
    answer = invoke("run", "--out", str(there), "--json")
    assert json.loads(answer.stdout)["trained"] == []
    assert (there / "modes" / "0" / "meta.json").read_text() == meta


@pytest.mark.slow
def test_a_run_without_a_control_and_with_two_modes(quick, tmp_path):
    out = ("--out", str(tmp_path / "run"))
    answer = invoke("run", *out, "--set", "control=no", "--set", "modes=2")
    assert answer.exit_code == 0, answer.output
    assert "label" not in answer.stdout
    assert invoke("study", "type-mix", *out).exit_code == 0
    assert invoke("study", "mode-choice", *out).exit_code == 0


@pytest.mark.slow
def test_members_of_an_older_recipe_are_left_out(quick, tmp_path):
    out = ("--out", str(tmp_path / "run"))
    assert invoke("run", *out).exit_code == 0
    changed = invoke("run", "digits", *out, "--set", "modes=2", "--set", "mode.epochs=1", "--set", "data.test=100")
    assert changed.exit_code == 0, changed.output
    assert "Changed since the last run" in changed.stderr
    advice = json.loads(invoke("advise", str(tmp_path / "run"), "--budget", "3", "--json").stdout)
    names = {name for choice in advice["by_size"] for name in choice["members"]}
    assert names <= {"mode-0", "mode-1", "I-0-1-small", "II-0-1-small", "labels-0-1-small"}
    # Damaged answers are not believed.
    file = tmp_path / "run" / "logits" / "I-0-1-small" / "weights.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 1
    file.write_bytes(bytes(raw))
    answer = invoke("report", str(tmp_path / "run"))
    assert answer.exit_code != 0
    assert "it has no members for DE-1 + 1 bridge I" in str(answer.exception)


@pytest.mark.slow
def test_a_folder_with_part_of_a_run_is_said(quick, tmp_path):
    assert invoke("study", "bridge-size", "--out", str(tmp_path / "run")).exit_code == 0
    answer = invoke("report", str(tmp_path / "run"))
    assert "Expected a finished run" in str(answer.exception)


AS_THEY_ARE = ("Written", "Report", "To export it")
"""Lines with a path or a command to be copied are not broken."""


@pytest.mark.slow
def test_tables_fit_a_plain_terminal(quick, folder):
    out, _ = folder
    for arguments in (
        ("recipes",),
        ("cost", "cifar100", "--paper"),
        ("advise", str(out)),
        ("study", "type1", "--out", str(out)),
    ):
        text = invoke(*arguments).stdout
        assert text
        assert "…" not in text
        assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith(AS_THEY_ARE))


@pytest.mark.slow
def test_default_folder(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("run", "--seed", "3").exit_code == 0
    assert Path("runs/digits-seed3/report.html").is_file()
