"""Program startup: set up Ctrl-C and the standard streams before any large import."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in modebridge/__init__.py: avoid unnecessary imports here
if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Interrupts", "goodbye", "main"]

STOPPED = 130
"""Exit code after Ctrl-C: 128 plus SIGINT, as in shells."""


def main() -> None:
    """Run the program: `modebridge`, or `python -m modebridge`."""
    interrupts = Interrupts()
    interrupts.install()
    _open_streams()
    from modebridge.cli.boundary import run_program

    run_program(sys.argv[1:], interrupts)


class Interrupts:
    """Ctrl-C handling: the first raises KeyboardInterrupt if something catches it, any further one exits immediately.

    During an import it also exits immediately: an exception inside an import may be printed as a traceback and then
    lost.
    """

    def __init__(self) -> None:
        self.caught = False
        """Whether KeyboardInterrupt will be caught; set only by the boundary."""
        self.raised = False
        """Whether KeyboardInterrupt was raised."""
        self._process = os.getpid()

    def install(self) -> None:
        """Install the signal handler."""
        # Unless the caller ignores Ctrl-C, as shells do for background jobs.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked worker: the parent prints the message
            raise KeyboardInterrupt
        if not self.caught or _importing(frame):
            goodbye()
        self.caught, self.raised = False, True
        raise KeyboardInterrupt


def goodbye(more: str = "") -> None:
    """Print that the program was stopped, and exit without waiting for training threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # print once, even if the key is held down
    if os.environ.get("RANK", "0") == "0":
        # Show the cursor again, which progress bars hide. Bypass Python's buffers, whose locks may be held.
        cursor = "\x1b[?25h" if os.isatty(2) else ""
        try:  # noqa: SIM105 - contextlib is not worth its import here
            os.write(2, f"{cursor}modebridge: stopped{more}.\n".encode(errors="backslashreplace"))
        except OSError:  # stderr is closed
            pass
    os._exit(STOPPED)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _open_streams() -> None:
    """Make stdout and stderr accept any text in any locale, and reserve the descriptors of closed streams."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
