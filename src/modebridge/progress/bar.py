"""One progress bar per library call: in terminals and notebooks by default, silent elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from modebridge.progress.screens import Screen

__all__ = ["Bar", "in_notebook", "no_bars", "progress_bar", "shows_progress"]

PERIOD = 0.25
"""Seconds between two drawings; reports in between cost a microsecond."""

P = ParamSpec("P")
R = TypeVar("R")

_shown = Lock()
_silenced: ContextVar[bool] = ContextVar("silenced", default=False)


@contextmanager
def progress_bar(show: bool | None, name: str, unit: str = "") -> Iterator[Bar]:
    """A bar on stderr or below a notebook cell while the block runs.

    There is one bar at a time: a call within another one, or on another thread, gets a silent bar. So do all processes
    but the first of `torchrun`.

    Args:
        show: None shows it in terminals and notebooks only. True shows it anywhere; a pipe gets its last state.
        name: text in front of the bar.
        unit: plural of what is counted.
    """
    if not _is_wanted(show) or not _shown.acquire(blocking=False):
        yield Bar(name, unit)
        return
    try:
        with closing(Bar(name, unit, _open_screen())) as bar:
            yield bar
    finally:
        _shown.release()


@contextmanager
def no_bars() -> Iterator[None]:
    """Show no bars on this thread while the block runs, since something else shows its progress."""
    token = _silenced.set(True)
    try:
        yield
    finally:
        _silenced.reset(token)


def shows_progress(name: str, unit: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Show a `progress_bar` while a function runs, which gets a callback (`types.Progress`) as `progress`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            show = kwargs.get("progress")
            if callable(show):
                return function(*args, **kwargs)
            with progress_bar(None if show is None else bool(show), name, unit) as bar:
                kwargs["progress"] = bar
                return function(*args, **kwargs)

        return call

    return decorate


class Bar:
    """A progress callback (`types.Progress`) that draws one row, at most a few times per second.

    Args:
        name: text in front of the bar.
        unit: plural of what is counted.
        screen: where to draw; None draws nothing.
    """

    def __init__(self, name: str, unit: str = "", screen: Screen | None = None) -> None:
        self._name, self._unit, self._screen = name, unit, screen
        self._latest: tuple[str, float, float, float, str] | None = None
        self._stage, self._drawn = "", 0.0
        if screen is not None:
            self._attempt(lambda: screen.draw(name))

    @property
    def silent(self) -> bool:
        """Whether nothing is drawn."""
        return self._screen is None

    def __call__(self, stage: str, done: float, total: float, rate: float, note: str = "") -> None:
        """Report progress.

        Args:
            stage: the current stage; may be empty.
            done: how much of the stage is done.
            total: how much there is to do.
            rate: images per second; 0 if unknown.
            note: text after the bar.
        """
        if self._screen is None:
            return
        self._latest = (stage, done, total, rate, note)
        # A new stage is drawn at once: it may be long before the next report.
        if stage != self._stage or time.monotonic() - self._drawn >= PERIOD:
            self._draw()

    def close(self) -> None:
        """Draw the last state and leave the terminal as it was."""
        self._draw()
        if self._screen is not None:
            self._attempt(self._screen.close)
        self._screen = None

    def _draw(self) -> None:
        if self._screen is None or self._latest is None:
            return
        stage, done, total, rate, note = self._latest
        title = f"{self._name}: {stage}" if stage else self._name
        count = f"{int(done):,}/{int(total):,} {self._unit}".rstrip()
        notes = ", ".join(text for text in (f"{rate:,.0f} images/s" if rate > 0 else "", note) if text)
        screen = self._screen
        self._attempt(lambda: screen.draw(title, done, total, count, notes))
        self._stage, self._drawn = stage, time.monotonic()

    def _attempt(self, draw: Callable[[], None]) -> None:
        try:
            draw()
        except (OSError, ValueError):
            # A closed terminal is no reason to stop the work.
            screen, self._screen = self._screen, None
            with suppress(OSError, ValueError):
                if screen is not None:
                    screen.close()


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook (Jupyter, Colab, VS Code), not IPython in a terminal."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return callable(get_ipython) and getattr(get_ipython(), "kernel", None) is not None


def _is_wanted(show: bool | None) -> bool:
    if show is False or _silenced.get() or os.environ.get("RANK", "0") != "0":
        return False
    return show is True or in_notebook() or _is_terminal()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it was closed
        return False


def _open_screen() -> Screen | None:
    # Imported late: rich takes a tenth of a second, and most programs run in pipes.
    from modebridge.progress.screens import NotebookScreen, TerminalScreen

    try:
        return NotebookScreen() if in_notebook() else TerminalScreen()
    except (OSError, ValueError):
        return None
