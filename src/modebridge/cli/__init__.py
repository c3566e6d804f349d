"""The command line: one verb per task."""

from modebridge.cli.start import main

__all__ = ["main"]
