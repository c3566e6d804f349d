"""Whatever goes wrong ends in one sentence: errors, Ctrl-C at any moment, streams that cannot be written."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import modebridge
from modebridge.cli import run as run_module, show, terminal
from modebridge.cli.boundary import BUG, CLOSED, MISTAKE, PARTLY, STOPPED, run_program
from modebridge.report import plain_table

SOURCE = Path(modebridge.__file__).parents[1]


@pytest.fixture
def run(monkeypatch, capsys):
    """Exit code, stdout and stderr of the program, in this process."""

    def run(*arguments):
        monkeypatch.setattr(terminal, "leave", sys.exit)
        with pytest.raises(SystemExit) as left:
            run_program([str(one) for one in arguments])
        return left.value.code, *capsys.readouterr()

    return run


def start(*arguments, environment=None, **options):
    command = [sys.executable, "-m", "modebridge", *map(str, arguments)]
    paths = {**os.environ, "PYTHONPATH": str(SOURCE), **(environment or {})}
    return subprocess.Popen(command, stderr=subprocess.PIPE, env=paths, **options)


def fail_with(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(show, "list_recipes", fail)


def test_a_bug_is_a_sentence_and_the_trace_is_for_who_asks(run, monkeypatch, tmp_path):
    fail_with(monkeypatch, KeyError("labels-0-1-small\x1b[31m"))
    code, out, err = run("recipes")
    assert (code, out, err.count("\n")) == (BUG, "", 1)
    assert all(text in err for text in ("`modebridge recipes`", "KeyError", "labels-0-1-small", "--debug"))
    assert "\x1b[31m" not in err
    for words in (("--debug", "recipes"), ("recipes", "--debug")):
        code, _, err = run(*words)
        assert code == BUG
        assert "Traceback" in err
        assert "in fail" in err
    monkeypatch.setenv("MODEBRIDGE_DEBUG", "1")
    assert "Traceback" in run("recipes")[2]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PermissionError(13, "Permission denied", "/a/[b]"), MISTAKE, "to read or write '/a/[b]', but got 'Permission"),
        (OSError(28, "No space left", "a", None, "b"), MISTAKE, "'a' and 'b', but got 'No space left'; check the path"),
        (OSError("odd"), MISTAKE, "but got 'odd'; run again with --debug"),
        (MemoryError(), MISTAKE, "Expected enough memory"),
        (RecursionError("deep\nlines"), BUG, "RecursionError: 'deep' ("),
        (SystemExit(3), 3, ""),
    ],
)
def test_every_error_has_its_sentence_and_code(run, monkeypatch, error, code, said):
    fail_with(monkeypatch, error)
    found, out, err = run("recipes")
    assert (found, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


def test_user_text_is_neither_markup_nor_a_command_to_the_terminal(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("a[/b]", "[red]x:smile:", "\x1b[31mx\n\x9b31m", "\u202eevil\udcff"):
        shown = terminal.visible(name)
        assert shown.isprintable()
        for words in (("report", name), ("cost", f"--{name}")):
            code, _, err = run(*words)
            assert code == MISTAKE
            assert shown in err or words[0] == "cost"  # typer has its own way to write them
            assert not set(err.replace("\n", "")) & {"\x1b", "\x9b", "\u202e", "\udcff"}
    screen = terminal.Screen()
    with screen.capture() as shown:
        table = plain_table("[bold]image", "n", title="[/title]")
        table.add_row("a[/b].png", ":smile:")
        screen.print(table)
    assert all(text in shown.get() for text in ("[bold]image", "[/title]", "a[/b].png", ":smile:"))


def test_data_is_ascii_and_whole(capsys, monkeypatch):
    monkeypatch.setattr(terminal.OPTIONS, "json", True)
    data = {"name": "\u00fc \x1b[31m \u202e \udcff" * 50}
    assert terminal.Screen().print_data(data)
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert json.loads(out) == data


def test_json_before_and_after_the_verb(run):
    before, after = run("--json", "recipes"), run("recipes", "--json")
    assert before == after
    assert json.loads(before[1])[0]["name"] == "digits"
    assert "recipe  " in run("recipes")[1], "and not for ever"
    code, _, err = run("report", "--", "--json")
    assert code == MISTAKE
    assert "Expected '--json' to be a run folder" in err


@pytest.mark.parametrize(
    "words", ["run --out", "run --data", "run --modes", "report", "report . --out", "export x", "predict x", "serve"]
)
def test_an_empty_path_is_not_the_current_folder(run, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*words.split(), "")
    assert code == MISTAKE
    assert "empty string" in err or "got ''" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("width", [80, 40, 20, 0])
def test_a_narrow_screen_cuts_nothing_off(run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    said = run("recipes")[1]
    assert "…" not in said
    assert all(len(line) <= max(width, 20) for line in said.splitlines())
    assert all(letter in said for letter in "cifar10-short-bn")
    assert (" recipe            networks  methods           data needed" in said) == (width == 80)


@pytest.mark.parametrize("new", [False, True])
def test_ctrl_c_in_a_run_says_how_to_go_on(run, monkeypatch, tmp_path, new):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run_recipe", stop)
    out = tmp_path / "\x1b[31m"
    if not new:
        out.mkdir()
    code, _, err = run("run", "--out", str(out))
    kept = f"; finished artifacts are kept in '{terminal.visible(str(out))}'; run the same command to resume"
    assert code == STOPPED
    assert f"modebridge: stopped{'; nothing had been trained yet' if new else kept}." in err


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_a_pipe_that_nobody_reads(word):
    read, write = os.pipe()
    os.close(read)
    with start(word, stdout=write) as process:
        os.close(write)
        assert process.stderr.read() == b""
    assert process.returncode == CLOSED


def full_stream():
    """Nothing is kept back, to fail again when it is closed."""
    return io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)


@needs_full
def test_results_that_cannot_be_written(run, monkeypatch):
    """Tables, data, and the help, which typer writes."""
    with full_stream() as full:
        for words in (("recipes",), ("recipes", "--json"), ("--version",), ("--help",)):
            monkeypatch.setattr(sys, "stdout", full)
            code, _, err = run(*words)
            assert (code, err.count("\n")) == (PARTLY, 1)
            assert "Expected to write the results to standard output, but got 'No space left on device'" in err


@needs_full
def test_words_about_the_work_that_cannot_be_written_do_not_stop_it(monkeypatch):
    with full_stream() as full:
        monkeypatch.setattr(sys, "stderr", full)
        terminal.say("unheard")
        monkeypatch.setattr(sys, "stderr", None)
        terminal.say("unheard")


def test_logs_get_few_lines_of_progress(monkeypatch, capsys):
    now = iter(range(10**6))  # every look at the clock is one second later
    monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(now)))
    with terminal.progress_bars() as report:
        for done in range(1, 1001):
            report("networks", done, 1000, 5.0)
        report("scores", 1, 2, 0.0)
        report("scores", 2, 2, 0.0)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.endswith(": done")] == ["networks: done", "scores: done"]
    told = [int(line.split()[1]) for line in lines if line.endswith(" of 1000 epochs")]
    assert 5 <= len(told) <= 10
    assert min(b - a for a, b in itertools.pairwise(told)) >= 100


def test_any_locale(tmp_path):
    """Names that are no text, and signs that the locale has not, in the plainest of locales."""
    name = os.fsdecode(b"\xff\xc3\xbc[red]")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    with start("--debug", f"--{name}", environment=plain, stdout=subprocess.DEVNULL) as process:
        err = process.stderr.read()
    assert process.returncode == MISTAKE
    assert b"UnicodeEncodeError" not in err
    assert rb"\udcff" in err
