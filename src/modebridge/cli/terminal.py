"""How the program talks: one console, progress of long work, silence in pipes and in all processes but the first.

Whatever comes from a user (paths, names, what is quoted in an error) goes through `Screen`, which shows it as it is: no
markup is read in it, and its control characters are made visible, so that a file's name cannot steer the terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from modebridge.cli.narrow import fitting
from modebridge.errors import ModebridgeError

__all__ = [
    "OutputError",
    "Screen",
    "first_process",
    "leave",
    "listed",
    "progress_bars",
    "put",
    "say",
    "screen",
    "visible",
]

NARROWEST = 20
Tell = Callable[[str, int, int, float], None]


class OutputError(Exception):
    """Standard output cannot be written; the cause says why."""


def first_process() -> bool:
    """Whether this is the process that speaks and writes: the only one, or the first that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def visible(text: str) -> str:
    r"""Text with every character shown that a terminal would obey, hide or refuse.

    >>> print(visible("a\x1b[31mb\n\udcff ü"))
    a\x1b[31mb\n\udcff ü
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


class Screen(Console):
    """A console for text that a user may have had a hand in.

    Args:
        stderr: write to standard error.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=not first_process(), highlight=False, markup=False, emoji=False)
        if self.width < NARROWEST:  # COLUMNS=0 would print nothing at all
            self.width = NARROWEST

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string that is printed, alone or in a table, comes here."""
        return super().render_str(visible(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; tables that are too wide for the screen as a list."""
        shown = [fitting(one, self) if isinstance(one, Table) else one for one in objects]
        with _written(self):
            super().print(*shown, **options)

    def print_data(self, data: object) -> None:
        """Print JSON that any locale can write."""
        self.print_json(json.dumps(data), ensure_ascii=True)

    def on_broken_pipe(self) -> None:
        """Leave it to the boundary."""
        raise


@contextmanager
def _written(console: Console) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # What is said about the work is no reason to stop it.
        if not console.stderr:
            raise OutputError from error


def screen() -> Screen:
    """The standard output; nothing in the other processes of a group."""
    return Screen()


def put(line: str) -> None:
    """A line of results as it is, for programs to read."""
    if first_process() and sys.stdout is not None:
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except OSError as error:
            raise OutputError from error


def say(text: str, *, style: str | None = None, fold: bool = True) -> None:
    """A sentence about the work, on standard error, so that results alone go down a pipe.

    Args:
        text: one sentence or more.
        style: of rich.
        fold: False leaves it on one line however narrow the screen is; off a terminal it always is on one.
    """
    console = Screen(stderr=True)
    # In a log a path must stay whole; only a person's screen has an edge.
    console.print(text, style=style, soft_wrap=not (fold and console.is_terminal))


def listed(option: str, text: str | None) -> list[str] | None:
    """The names after an option, with commas between them; None where it was not given."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ModebridgeError(f"Expected {option} to name something, but got '{text}'; leave it out, or name some.")
    return names


@contextmanager
def progress_bars(*, show: bool = True) -> Iterator[Tell]:
    """Bars on standard error, with rate and time left; in a pipe one line a stage, when it is done.

    Args:
        show: whether to draw them on a terminal; False where something else is drawn there.
    """
    console = Screen(stderr=True)
    lock = Lock()
    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not (show and console.is_terminal),
    ) as bars:

        def tell(stage: str, done: int, total: int, rate: float) -> None:
            unit = "batches" if stage in ("scores", "shifted scores", "other sets") else "epochs"
            with lock:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=total, rate="", unit=unit)
                bars.update(tasks[stage], completed=done, total=total, rate=f"{rate:,.0f} images/s")
                if done == total and not console.is_terminal:
                    console.print(f"{stage}: {total} {unit} done")

        yield tell


def leave(code: int) -> None:
    """End, and with it the group of processes where there is one; see `Processes.leave`."""
    if code != 0:
        # At once, as after Ctrl-C: networks on other threads must not go on training without the folder's lock.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, AttributeError):  # full, or closed from the beginning
                stream.flush()
        os._exit(code)
    if "torch" in sys.modules:
        from modebridge.training.processes import leave as leave_group

        leave_group()
    sys.exit(code)
