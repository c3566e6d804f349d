"""How the program talks: one console, progress of long work, silence in pipes and in all processes but the first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

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

__all__ = ["first_process", "leave", "progress_bars", "say", "screen"]

Tell = Callable[[str, int, int, float], None]


def first_process() -> bool:
    """Whether this is the process that speaks and writes: the only one, or the first that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def screen() -> Console:
    """The standard output; nothing in the other processes of a group."""
    return Console(quiet=not first_process(), highlight=False)


def say(text: str, *, style: str | None = None) -> None:
    """A sentence about the work, on standard error, so that results alone go down a pipe."""
    Console(stderr=True, quiet=not first_process(), highlight=False).print(text, style=style, markup=False)


@contextmanager
def progress_bars() -> Iterator[Tell]:
    """Bars on standard error, with rate and time left; in a pipe one line a stage, when it is done."""
    console = Console(stderr=True, quiet=not first_process())
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
        disable=not console.is_terminal,
    ) as bars:

        def tell(stage: str, done: int, total: int, rate: float) -> None:
            unit = "batches" if stage == "scores" else "epochs"
            with lock:
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=total, rate="", unit=unit)
                bars.update(tasks[stage], completed=done, total=total, rate=f"{rate:,.0f} images/s")
                if done == total and not console.is_terminal:
                    console.print(f"{stage}: {total} {unit} done", highlight=False)

        yield tell


def leave(code: int) -> None:
    """End, and with it the group of processes where there is one; see `Processes.leave`."""
    if code != 0:
        # At once, as after Ctrl-C: networks on other threads must not go on training without the folder's lock.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if "torch" in sys.modules:
        from modebridge.training.processes import leave as leave_group

        leave_group()
    sys.exit(code)
