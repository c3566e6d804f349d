"""Terminal output: one console, progress bars that pipes do not get, and only the first process prints.

User text (paths, names, quotes in errors) goes through `Screen`, which prints it literally: markup is not interpreted
and control characters are escaped, so a file name cannot control the terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from modebridge.errors import ModebridgeError

MIN_WIDTH = 20
NAME = "modebridge"
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
"""Without tqdm's own rate: stages report images per second."""
SECONDS = 30.0
"""Between two lines of progress in a pipe, of which a stage gets at most ten."""


@dataclass
class Options:
    """The options of the program itself, which hold for every verb."""

    json: bool = False
    debug: bool = False


OPTIONS = Options()


def program() -> str:
    """How to call this program from here: by its name if the shell finds it, else by its path."""
    own = Path(sys.argv[0])
    if own.name == "__main__.py" and own.parent.name == NAME:
        return f"python -m {NAME}"
    found = shutil.which(own.name)
    known = own.stem != NAME or not own.is_file() or (found is not None and Path(found).samefile(own))
    return NAME if known else here(own)


def here(path: Path) -> str:
    """A path as short as it can be written from the current folder."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


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
    """A console that prints user text literally; silent in all processes but the first."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=not first_process(), highlight=False, markup=False, emoji=False)
        if self.width < MIN_WIDTH:  # COLUMNS=0 would print nothing at all
            self.width = MIN_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string literally; rich calls this for every string, also in tables."""
        return super().render_str(visible(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError as error:
            # A failed progress message must not stop the work.
            if not self.stderr:
                raise OutputError from error

    def print_data(self, data: object) -> bool:
        """With --json, print results as ASCII-only JSON, which works in any locale; returns whether it was given."""
        if OPTIONS.json:
            self.print_json(json.dumps(data), ensure_ascii=True)
        return OPTIONS.json

    def next_steps(self, *steps: tuple[str, str] | None) -> None:
        """Commands to go on with, each with what it does; None is left out."""
        given = [step for step in steps if step is not None]
        width = max(len(command) for command, _ in given)
        self.print("Next:")
        for command, what in given:
            self.print(f"  {command:{width}}  # {what}", soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Let the boundary handle it."""
        raise


def say(text: str, *, style: str | None = None, fold: bool = True) -> None:
    """Print a message to stderr, so that stdout carries only results; `fold` wraps it at the width of a terminal."""
    console = Screen(stderr=True)
    # Paths must stay whole in logs, so only terminals wrap.
    console.print(text, style=style, soft_wrap=not (fold and console.is_terminal))


def warn(*sentences: str) -> None:
    """Print warnings to stderr."""
    for sentence in sentences:
        say(sentence, style="yellow")


def note(text: str) -> None:
    """Print to stderr what a long step is doing, on a terminal only."""
    if Screen(stderr=True).is_terminal:
        say(text, style="dim")


def listed(option: str, text: str | None) -> list[str] | None:
    """Split the comma-separated value of an option; None if the option was not given."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ModebridgeError(f"Expected {option} to list names, but got '{text}'; give some, or leave it out.")
    return names


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int, float], None]]:
    """A progress bar on stderr for each stage; in a pipe a few lines, and one at its end."""
    from tqdm import tqdm

    hidden = not (Screen(stderr=True).is_terminal and first_process())
    with ExitStack() as stack:
        bars: dict[str, Any] = {}
        said, last = dict[str, int](), time.monotonic()

        def report(stage: str, done: int, total: int, rate: float) -> None:
            if stage not in bars:
                bars[stage] = stack.enter_context(tqdm(desc=stage, bar_format=BAR, dynamic_ncols=True, disable=hidden))
            nonlocal last
            bar, said[stage] = bars[stage], min(said.get(stage, 0), done)  # a stage may come again
            if hidden and done == total and bar.n < total:
                say(f"{stage}: done")
            elif hidden and 10 * (done - said[stage]) >= total > done and time.monotonic() - last >= SECONDS:
                say(f"{stage}: {done} of {total}{'' if stage == 'scores' else ' epochs'}")
                said[stage], last = done, time.monotonic()
            bar.total, bar.n = total, done
            bar.set_postfix_str(f"{rate:,.0f} images/s" if rate else "")

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
