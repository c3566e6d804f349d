"""Where a progress bar is drawn: a terminal, or the output of a notebook cell."""

from __future__ import annotations

import io
import sys
from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["NotebookScreen", "Screen", "TerminalScreen"]

NOTEBOOK_WIDTH = 100
BAR_WIDTH = 20


class Screen(ABC):
    """One row: title, bar, count, notes, and the time left (the time taken, at the end).

    Args:
        console: where it is rendered.
        redirect_stdout: whether text printed in the meantime goes above the bar.
    """

    def __init__(self, console: Console, *, redirect_stdout: bool = False) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[notes]}", markup=False),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            # No thread that draws: it would take time from training, and its locks would not survive a fork.
            auto_refresh=False,
            # Over all samples: an epoch may take longer than any period.
            speed_estimate_period=float("inf"),
            redirect_stdout=redirect_stdout,
        )
        self._row = self._bars.add_task("", total=None, count="", notes="")

    def draw(self, title: str, done: float = 0, total: float | None = None, count: str = "", notes: str = "") -> None:
        """Draw a state."""
        self._bars.update(self._row, description=title, total=total, completed=done, count=count, notes=notes)
        self.refresh()

    @abstractmethod
    def refresh(self) -> None:
        """Show what was updated."""

    @abstractmethod
    def close(self) -> None:
        """Leave the last state on the screen."""


class TerminalScreen(Screen):
    """A bar on stderr."""

    def __init__(self) -> None:
        # Output to a file must not end up on the terminal with the bar.
        together = sys.stdout is not None and sys.stdout.isatty()
        super().__init__(_Stderr(stderr=True, markup=False, emoji=False, highlight=False), redirect_stdout=together)

    def refresh(self) -> None:
        """Draw over the last state, if there is one."""
        if self._bars.live.is_started:
            self._bars.refresh()
        else:
            self._bars.start()

    def close(self) -> None:
        """Restore stdout, stderr and the cursor."""
        self._bars.stop()


class NotebookScreen(Screen):
    """A line of text below a cell, updated in place: needs IPython only, where rich itself needs ipywidgets."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), width=NOTEBOOK_WIDTH, force_terminal=False, force_jupyter=False)
        super().__init__(self._console)
        self._handle: Any = None

    def refresh(self) -> None:
        """Replace the line."""
        display: Any = import_module("IPython.display").display  # untyped where it is installed
        with self._console.capture() as line:
            self._console.print(self._bars.get_renderable())
        data = {"text/plain": line.get().rstrip()}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def close(self) -> None:
        """The line stays."""


class _Stderr(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the bar, where rich would end the program."""
        raise
