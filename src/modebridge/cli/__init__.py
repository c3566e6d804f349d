"""The command line: one verb per task."""

from modebridge.cli.boundary import main as main
