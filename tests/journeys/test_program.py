"""The installed program as a user meets it: a run from start to end, and every mistake in one sentence."""

import json
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


def invoke(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setitem(RECIPES, "digits", small())
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run, made once by the program itself."""
    out = tmp_path_factory.mktemp("program") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "digits", small())
        answer = invoke("run", "--out", out)
    assert answer.exit_code == 0, answer.output
    return out, answer


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--version",), 0, modebridge.__version__),
        (("--help",), 0, "advise"),
        (("run", "--nonsense"), 2, "--nonsense"),
        (("run", "--out", __file__), 2, "--out to be a folder, but"),
    ],
)
def test_as_a_process_of_its_own(arguments, code, said):
    command = [sys.executable, "-m", "modebridge", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == code
    assert said in " ".join((answer.stderr if code else answer.stdout).split())
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "cifar"), "Expected a known recipe, but got 'cifar'; did you mean "),
        (("run", "--set", "mode.epoch=3"), "got 'mode.epoch'; did you mean mode.epochs"),
        (("run", "cifar10-short", "--data", "/nowhere"), "Expected CIFAR-10 in '/nowhere'"),
        (("run", "mine.toml"), "no such file"),
        (("run", "--on", ""), "Expected --on to name a cluster"),
        (("study", "typo"), "Expected a known study, but got 'typo'"),
        (("report", "/nowhere"), "to be a run folder"),
        (("cost", "--set", "data.name=foo"), "to be a known data set, folder:PATH or FILE.py:FUNCTION, but got 'foo'"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_no_trace(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("modebridge.cli.terminal.leave", sys.exit)
    out = ("--out", str(tmp_path / "run")) if arguments[0] in ("run", "study") else ()
    with pytest.raises(SystemExit) as left:
        run_program((*arguments, *out))
    stdout, stderr = capsys.readouterr()
    assert left.value.code == 2
    assert message in stderr.replace("\n", " ")
    assert "Traceback" not in stderr
    assert stdout == ""
    assert not (tmp_path / "run").exists(), "a failure leaves no folder that it made"


def test_a_failure_keeps_what_was_there_and_what_was_made(quick, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    fails = ("study", "type1", "cifar10-short", "--data", "/nowhere", "--out", tmp_path / "own")
    assert isinstance(invoke(*fails).exception, ModebridgeError)
    assert (tmp_path / "own").is_dir()

    def fail(*_, **__):
        raise ModebridgeError("as a full disk would")

    monkeypatch.setattr("modebridge.members.curve.fit_curves", fail)
    assert "full disk" in str(invoke("run", "--out", tmp_path / "run", "--set", "modes=2").exception)
    assert (tmp_path / "run" / "modes" / "0" / "weights.safetensors").is_file()
    assert (tmp_path / "run" / "recipe.toml").is_file()


def test_a_run_says_where_its_report_is(folder):
    out, answer = folder
    for words in ("one network ", "one network + 1 bridge ", "cascade of two networks", "two networks "):
        assert words in answer.stdout
    assert f"Page: {out / 'report.html'} (all 11 rows, and the figures)" in answer.stdout
    assert f"  modebridge advise {out} --budget 1.2" in answer.stdout
    assert "networks: done" in answer.stderr
    names = {file.name for file in out.iterdir()}
    assert {"recipe.toml", "results.json", "results.md", "report.html", "modes", "curves", "bridges"} <= names
    data = json.loads((out / "results.json").read_text())
    assert len(data["rows"]) == 11
    assert data["trained"]
    assert {file.name for file in (out / ".work").iterdir()} == {"lock"}


@pytest.mark.slow
def test_a_study_from_the_command_line(folder):
    """Without a recipe on the command line the folder's own is used, and nothing is trained anew for another."""
    out, _ = folder
    before = (out / "recipe.toml").read_text()
    answer = invoke("study", "mode-choice", "--out", out)
    assert answer.exit_code == 0, answer.output
    assert "High + 2 bridges I" in answer.stdout
    assert "Study: mode-choice" in (out / "report.html").read_text()
    assert (out / "recipe.toml").read_text() == before
    assert json.loads(invoke("study", "mode-choice", "--out", out, "--json").stdout)[0]["title"]


@pytest.mark.slow
def test_members_of_an_older_recipe_are_left_out(quick, tmp_path):
    out = tmp_path / "run"
    assert invoke("run", "--out", out).exit_code == 0
    settings = ("--set", "modes=2", "--set", "mode.epochs=1", "--set", "data.test=100", "--set", "control=no")
    changed = invoke("run", "digits", "--out", out, "--replace", *settings)
    assert changed.exit_code == 0, changed.output
    assert "Changed since the last run" in changed.stderr
    assert "label" not in changed.stdout
    advice = json.loads(invoke("advise", out, "--budget", "3", "--json").stdout)
    names = {name for choice in advice["by_size"] for name in choice["members"]}
    assert names <= {"mode-0", "mode-1", "I-0-1-small", "II-0-1-small", "labels-0-1-small"}


@pytest.mark.slow
def test_a_folder_with_part_of_a_run_is_said(quick, tmp_path):
    assert invoke("study", "bridge-size", "--out", tmp_path / "run").exit_code == 0
    assert "Expected a finished run" in str(invoke("report", tmp_path / "run").exception)


@pytest.mark.slow
def test_default_folder_and_tables_that_fit_a_plain_terminal(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = [invoke("run", "--seed", "3").stdout, invoke("cost", "cifar100", "--paper").stdout]
    assert Path("runs/digits-seed3/report.html").is_file()
    shown += [invoke("advise", "runs/digits-seed3").stdout, invoke("run", "--seed", "3", "--plan").stdout]
    for text in shown:
        assert text
        assert "…" not in text
        long = [line for line in text.splitlines() if len(line) > 80]
        assert all(line.startswith(("Page", "  ")) for line in long), "paths and commands are not broken"
