"""The command line: one verb per thing a person wants."""

from modebridge.cli.start import main

__all__ = ["main"]
