"""What the shell offers after Tab, and that nothing heavy is imported for it, for --help or for --version."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import modebridge
from modebridge.cli import completion, terminal
from modebridge.cli.boundary import run_program
from modebridge.cli.completion import complete_exported, complete_run_folder, complete_target
from modebridge.cli.start import Interrupts
from modebridge.recipes import RECIPES
from modebridge.studies import STUDIES

SOURCE = str(Path(modebridge.__file__).parents[1])
HEAVY = ("jinja2", "matplotlib", "numpy", "pydantic", "scipy", "torch")


@pytest.fixture
def offered(monkeypatch, capsys):
    """The words that the program answers to a shell, in this process."""

    def offered(line, shell="bash"):
        words = line.split(" ")
        monkeypatch.setenv("_MODEBRIDGE_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        monkeypatch.setattr(terminal, "leave", sys.exit)
        with pytest.raises(SystemExit) as left:
            run_program([], Interrupts())
        assert left.value.code == 0
        return capsys.readouterr().out

    return offered


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A place with run folders, exported files and other things."""
    for name in ("runs/digits", "runs/c10", "runs/two words", "other/deep/er", ".hidden/run"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.toml").touch()
    (tmp_path / "runs" / "digits" / "modes").mkdir()
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "manifest.json").touch()
    (tmp_path / "fast.onnx").touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "fast.pt2").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_names_are_those_that_exist():
    assert tuple(RECIPES) == completion.RECIPES
    assert tuple(STUDIES) == completion.STUDIES


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("modebridge pre", "predict"),
        ("modebridge run dig", "digits"),
        ("modebridge study mode", "mode-choice"),
        ("modebridge study type1 tin200-short-", "tin200-short-bn"),
        ("modebridge run --devi", "--device"),
        ("modebridge run digits --device cu", "cuda"),
        ("modebridge bench --recipe in1k-", "in1k-bn"),
        ("modebridge advise runs/digits --by t", "time"),
        ("modebridge advise --mean lo", "logarithmic"),
        ("modebridge report runs/d", "runs/digits"),
        ("modebridge run --out runs/c", "runs/c10"),
        ("modebridge bench mo", "models/fast.pt2"),
        ("modebridge predict f", "fast.onnx"),
        ("modebridge export runs/digits new", ""),
    ],
)
def test_bash_gets_the_word(offered, runs, line, expected):
    assert offered(line) == f"{expected}\n"


def test_the_other_shells_get_it_in_their_own_form(offered, runs):
    assert offered("modebridge study mode", "zsh") == "_arguments '*: :((\"mode-choice\"))'\n"
    assert offered("modebridge study mode", "fish") == "mode-choice\n"
    assert offered("modebridge predict nothing-here", "zsh") == "_files\n"
    verb, about = offered("modebridge ser", "fish").rstrip().split("\t")
    assert verb == "serve"
    assert "HTTP" in about


def test_run_folders_as_they_are_typed(runs, monkeypatch):
    assert complete_run_folder("") == ["archive", "runs/c10", "runs/digits"]
    assert complete_run_folder("./ru") == ["./runs/c10", "./runs/digits"]
    assert complete_run_folder("other/") == ["other/deep/er"]
    assert complete_run_folder(".h") == [".hidden/run"]
    assert complete_run_folder("runs/digits/") == []
    assert complete_run_folder("nowhere/") == []
    assert complete_run_folder(f"{runs}/arc") == [f"{runs}/archive"]
    monkeypatch.setenv("HOME", str(runs))
    assert complete_run_folder("~/runs/d") == ["~/runs/digits"]
    assert complete_exported("") == ["fast.onnx", "models/fast.pt2"]
    assert complete_target("") == ["archive", "fast.onnx", "models/fast.pt2", "runs/c10", "runs/digits"]


def test_a_large_folder_is_not_read_to_its_end(runs, monkeypatch):
    monkeypatch.setattr(completion, "MOST_ENTRIES", 0)
    assert complete_run_folder("") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_installed_into_bash_as_users_do(tmp_path):
    """`modebridge --install-completion`, a new shell, and Tab."""
    program = tmp_path / "bin" / "modebridge"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m modebridge \"$@\"\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": path, "PYTHONPATH": SOURCE}

    def bash(script):
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environment)

    installed = bash("modebridge --install-completion; true")  # `true`: else the shell would become the program
    assert "bash completion installed" in installed.stdout, installed.stderr
    answer = bash(
        "source ~/.bashrc; complete -p modebridge; COMP_WORDS=(modebridge run cifar100); COMP_CWORD=2; "
        '_modebridge_completion modebridge; echo "${COMPREPLY[@]}"'
    )
    assert answer.stdout.splitlines()[-1] == "cifar100 cifar100-bn"
    assert answer.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [(["--help"], ""), (["run", "--help"], ""), (["--version"], ""), ([], "modebridge report r")],
    ids=["help", "help of a verb", "version", "completion"],
)
def test_nothing_heavy_is_imported(arguments, line):
    """Importing torch takes longer than all else that these do."""
    script = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr))\n"
        "import modebridge\n"
        "from modebridge.cli import main\n"
        "main()"
    )
    shell = {"_MODEBRIDGE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "2"} if line else {}
    answer = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE, **shell},
    )
    assert answer.stdout
    # typer converts what was typed with pydantic; there is no way around it for a line that names a verb.
    assert set(answer.stderr.split()) <= ({"pydantic"} if line else set())
