"""What goes to stderr on a terminal and in a pipe."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from modebridge.cli import show_commands, terminal
from modebridge.cli.app import app
from tests.runs.small import small


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_note_is_for_terminals(on_terminal, monkeypatch, capsys):
    monkeypatch.setattr(terminal.Screen, "is_terminal", on_terminal)
    terminal.note("Counting [red] ...")
    out, err = capsys.readouterr()
    assert out == ""
    assert ("Counting [red] ..." in err) == on_terminal
    terminal.say("Done")
    assert "Done" in capsys.readouterr().err


def test_progress_in_a_pipe_is_a_line_per_stage(capsys):
    with terminal.progress_bars() as tell:
        for stage, unit_rate in (("modes", 100.0), ("figures", 0.0)):
            tell(stage, 1, 2, unit_rate)
            tell(stage, 2, 2, unit_rate)
    assert capsys.readouterr().err == "modes: 2 epochs done\nfigures: 2 curves done\n"


@pytest.mark.parametrize("on_terminal", [False, True])
def test_counting_is_announced(on_terminal, monkeypatch):
    monkeypatch.setattr(terminal.Screen, "is_terminal", property(lambda screen: screen.stderr and on_terminal))
    monkeypatch.setattr(show_commands, "RECIPES", {"digits": small})
    monkeypatch.setattr(show_commands, "seconds_here", lambda recipes: {"digits": 1.0})
    result = CliRunner().invoke(app, ["recipes", "--estimate", "--json"])
    assert json.loads(result.stdout)[0]["seconds"] == 1.0
    for step in ("Counting recipe 1 of 1: digits", "Timing a few training steps"):
        assert (step in result.stderr) == on_terminal
