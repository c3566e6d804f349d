"""How a bar is drawn: how often, where, and what happens when the terminal goes away."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

import modebridge as mb
from modebridge.progress import Bar, bar, progress_bar
from modebridge.training.epochs import Epoch
from modebridge.training.outcome import EpochBar
from tests.progress.terminals import DATA, perceptron, terminal
from tests.scenarios import quick

NET = perceptron(0)


class Recorder:
    """A screen that keeps what was drawn."""

    def __init__(self):
        self.drawn = []
        self.closed = False

    def draw(self, *state):
        self.drawn.append(state)

    def close(self):
        self.closed = True


def test_a_bar_is_drawn_a_few_times_per_second(monkeypatch):
    now = 0.0
    monkeypatch.setattr(bar.time, "monotonic", lambda: now)
    screen = Recorder()
    shown = Bar("mode", "epochs", screen)
    for step in range(1, 1001):
        now = step / 100
        shown("", step, 1000, 0.0)
    assert 30 <= len(screen.drawn) <= 42  # ten seconds
    shown("last", 1000, 1000, 12345.6, "loss 1.000")
    assert screen.drawn[-1] == ("mode: last", 1000, 1000, "1,000/1,000 epochs", "12,346 images/s, loss 1.000")
    shown("last", 1000, 1000, 0.0)
    shown.close()
    assert screen.drawn[-1] == ("mode: last", 1000, 1000, "1,000/1,000 epochs", "")
    assert screen.closed
    assert shown.silent


def test_epochs_move_within_an_epoch_once_their_length_is_known():
    told = []
    epochs = EpochBar(lambda *state: told.append(state), 10)
    epochs.tick(3, 8)
    assert told[-1][:3] == ("", 3, 10)  # resumed in the fourth epoch
    assert told[-1][4] == "8 images"
    epochs.epoch(Epoch(4, 10, 0.1, {"a": 1.0, "b": 2.0}, images=32, seconds=2.0))
    assert told[-1] == ("", 4, 10, 16.0, "loss 1.500")
    for images, done in ((8, 4.25), (32, 5), (40, 5)):
        epochs.tick(4, images)
        assert told[-1][1] == done


def test_a_closed_terminal_does_not_stop_training(monkeypatch):
    class Gone:
        encoding = "utf-8"
        written = 0

        def isatty(self):
            return True

        def fileno(self):
            raise OSError

        def flush(self):
            pass

        def write(self, text):
            self.written += 1
            if self.written > 1:
                raise OSError(5, "Input/output error")

    gone = Gone()
    with terminal(), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", gone)
        mode = mb.fit_mode(NET, DATA, config=quick(2))
        assert sys.stderr is gone
    assert gone.written > 1
    assert mode.id == mb.fit_mode(NET, DATA, config=quick(2)).id


@pytest.mark.parametrize("missing", ["none", "closed"])
def test_no_stderr_is_no_terminal(monkeypatch, missing):
    closed = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", None if missing == "none" else closed)
    with progress_bar(None, "mode") as shown:
        assert shown.silent


def test_a_notebook_shows_one_line_that_is_updated(monkeypatch):
    lines = []

    def display(data, *, raw, display_id):
        assert raw
        assert display_id is True
        assert lines == []
        lines.append(data["text/plain"])
        return SimpleNamespace(update=lambda data, *, raw: lines.append(data["text/plain"]))

    ipython(monkeypatch, SimpleNamespace(kernel=object()), display)
    mb.fit_mode(NET, DATA, config=quick(2))
    assert lines[0].startswith("mode ")
    assert " 2/2 epochs " in lines[-1]
    assert not any("\x1b" in line or "\n" in line for line in lines)
    shown = len(lines)
    mb.fit_mode(NET, DATA, config=quick(2), progress=False)
    assert len(lines) == shown


def test_ipython_in_a_pipe_is_no_notebook(monkeypatch):
    assert not bar.in_notebook()
    ipython(monkeypatch, SimpleNamespace(), None)
    assert not bar.in_notebook()
    ipython(monkeypatch, None, None)
    assert not bar.in_notebook()


def ipython(monkeypatch, shell, display):
    package, displays = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: shell
    displays.display = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
