"""The program's first moments: Ctrl-C and the standard streams are safe before anything large is imported."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in modebridge/__init__.py: nothing is imported here that need not be
if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Interrupts", "goodbye", "main"]

STOPPED = 130
"""The exit code after Ctrl-C, as a shell would say it."""


def main() -> None:
    """Run the program: `modebridge`, or `python -m modebridge`."""
    interrupts = Interrupts()
    interrupts.install()
    _open_streams()
    from modebridge.cli.boundary import run_program

    run_program(sys.argv[1:], interrupts)


class Interrupts:
    """What Ctrl-C does: the first raises KeyboardInterrupt where that is caught, every other ends the process at once.

    While something is being imported it ends at once too: an exception inside of the interpreter's own import, or of a
    library's, is printed as a trace there and then lost.
    """

    def __init__(self) -> None:
        self.caught = False
        """Whether somebody is there to catch KeyboardInterrupt: set by the boundary, and by it alone."""
        self.raised = False
        """Whether KeyboardInterrupt was raised."""
        self._process = os.getpid()

    def install(self) -> None:
        """From now on."""
        # Not where the caller has Ctrl-C ignored (a shell's background).
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked worker: its parent speaks
            raise KeyboardInterrupt
        if not self.caught or _importing(frame):
            goodbye()
        self.caught, self.raised = False, True
        raise KeyboardInterrupt


def goodbye(more: str = "") -> None:
    """Say that the program was stopped, and end: a plain exit would wait for the networks trained on other threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key that is held down says it once
    if os.environ.get("RANK", "0") == "0":
        # The cursor comes back, which a bar of progress had hidden; past Python's buffers, whose locks may be held.
        cursor = "\x1b[?25h" if os.isatty(2) else ""
        try:  # noqa: SIM105 - contextlib is not worth its import here
            os.write(2, f"{cursor}modebridge: stopped{more}.\n".encode(errors="backslashreplace"))
        except OSError:  # nobody listens
            pass
    os._exit(STOPPED)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _open_streams() -> None:
    """Make both streams print any text, whatever the locale; let no file of ours take the number of a closed one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
