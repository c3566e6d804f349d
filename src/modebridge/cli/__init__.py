"""The command line: one verb per task."""

from modebridge.cli.boundary import main

__all__ = ["main"]
