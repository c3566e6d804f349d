"""Terminal output: one console, progress bars that pipes do not get, and only the first process prints.

User text (paths, names, quotes in errors) goes through `Screen`, which prints it literally: markup is not interpreted
and control characters are escaped, so a file name cannot control the terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
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

from modebridge.errors import ModebridgeError

__all__ = [
    "OutputError",
    "Screen",
    "first_process",
    "leave",
    "listed",
    "note",
    "progress_bars",
    "put",
    "say",
    "silence_compiler",
    "visible",
]

MIN_WIDTH = 20
FOLDED = 12
"""Minimum width of a text column that is wrapped."""
UNITS = {"scores": "batches", "shifted scores": "batches", "other sets": "batches", "figures": "curves"}
"""What the progress of a stage counts, where it is not epochs."""
Report = Callable[[str, int, int, float], None]


class OutputError(Exception):
    """Standard output cannot be written; the cause is the original error."""


def first_process() -> bool:
    """Whether this process prints and writes files: the only one, or rank 0 under torchrun."""
    return os.environ.get("RANK", "0") == "0"


def visible(text: str) -> str:
    r"""Text with all non-printable characters escaped.

    >>> print(visible("a\x1b[31mb\n\udcff ü"))
    a\x1b[31mb\n\udcff ü
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


class Screen(Console):
    """A console that prints user text literally; silent in all processes but the first.

    Args:
        stderr: write to stderr instead of stdout.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=not first_process(), highlight=False, markup=False, emoji=False)
        if self.width < MIN_WIDTH:  # COLUMNS=0 would print nothing at all
            self.width = MIN_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string literally; rich calls this for every string, also in tables."""
        return super().render_str(visible(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; tables too wide for the screen become lists."""
        shown = [_fitting(item, self) if isinstance(item, Table) else item for item in objects]
        try:
            super().print(*shown, **options)
        except OSError as error:
            # A failed progress message must not stop the work.
            if not self.stderr:
                raise OutputError from error

    def print_data(self, data: object) -> None:
        """Print ASCII-only JSON, which works in any locale."""
        self.print_json(json.dumps(data), ensure_ascii=True)

    def on_broken_pipe(self) -> None:
        """Let the boundary handle it."""
        raise


def _fitting(table: Table, console: Console) -> RenderableType:
    """The table if it fits the console, else a list: each row's first cell, then its other cells with their headers."""
    if _needs(table, console) <= console.width:
        return table
    columns = [[_text(cell, console) for cell in (column.header, *column.cells)] for column in table.columns]
    heads, *rows = zip(*columns, strict=True)
    lines = [Text(_text(table.title, console))] if table.title else []
    for table_row, cells in zip(table.rows, rows, strict=True):
        labelled = [f"{head} {cell}".strip() for head, cell in zip(heads[1:], cells[1:], strict=True) if cell]
        style = table_row.style or ""
        lines += [Text(text, style, overflow="fold") for text in (cells[0], *_filled(labelled, console.width)) if text]
    return Group(*lines)


def _needs(table: Table, console: Console) -> int:
    """The width that the table needs with nothing cut off."""
    needed = 0
    for column in table.columns:
        widths = [Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells)]
        widest = max(width.maximum for width in widths)
        needed += widest if column.no_wrap else min(widest, FOLDED)
    # Our table style: two spaces between columns, one at each end.
    return needed + 2 * len(table.columns)


def _filled(items: Sequence[str], width: int) -> list[str]:
    """Comma-separated items in indented lines; items that fit on a line are not broken."""
    lines: list[str] = []
    for k, item in enumerate(items):
        part = item if k == len(items) - 1 else f"{item},"
        if lines and cell_len(lines[-1]) + 1 + cell_len(part) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(f"  {part}")
    return lines


def _text(cell: RenderableType | None, console: Console) -> str:
    return cell.plain if isinstance(cell, Text) else console.render_str(str(cell)).plain


def put(line: str) -> None:
    """Print a line of results unchanged, for other programs to read."""
    if first_process() and sys.stdout is not None:
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except OSError as error:
            raise OutputError from error


def say(text: str, *, style: str | None = None, fold: bool = True) -> None:
    """Print a message to stderr, so that stdout carries only results.

    Args:
        text: the message.
        style: rich style.
        fold: wrap at the width of the terminal. Output that is not a terminal is never wrapped.
    """
    console = Screen(stderr=True)
    # Paths must stay whole in logs, so only terminals wrap.
    console.print(text, style=style, soft_wrap=not (fold and console.is_terminal))


def note(text: str) -> None:
    """Print to stderr what a long step is doing, on a terminal only."""
    if Screen(stderr=True).is_terminal:
        say(text, style="dim")


def silence_compiler() -> None:
    """Hide the warnings of torch's compiler, which do not help users."""
    import logging  # takes time that --help does not have

    warnings.filterwarnings("ignore", module="torch")
    logging.getLogger("torch").setLevel(logging.ERROR)


def listed(option: str, text: str | None) -> list[str] | None:
    """Split the comma-separated value of an option; None if the option was not given."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ModebridgeError(f"Expected {option} to list names, but got '{text}'; give some, or leave it out.")
    return names


@contextmanager
def progress_bars(*, show: bool = True) -> Iterator[Report]:
    """Progress bars on stderr, with rate and remaining time; in a pipe, one line per finished stage.

    Args:
        show: draw bars on a terminal; False if something else is drawn there.
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

        def report(stage: str, done: int, total: int, rate: float) -> None:
            unit = UNITS.get(stage, "epochs")
            with lock:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=total, rate="", unit=unit)
                bars.update(tasks[stage], completed=done, total=total, rate=f"{rate:,.0f} images/s" if rate else "")
                if done == total and not console.is_terminal:
                    console.print(f"{stage}: {total} {unit} done")

        yield report


def leave(code: int) -> None:
    """Exit, and leave the process group if there is one; see `Processes.leave`."""
    if code != 0:
        # Exit immediately, as after Ctrl-C: other threads must not keep training without the folder's lock.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, AttributeError):  # disk full, or closed from the start
                stream.flush()
        os._exit(code)
    if "torch" in sys.modules:
        from modebridge.training.processes import leave as leave_group

        leave_group()
    sys.exit(code)
