"""Run the program: `python -m modebridge`."""

from modebridge.cli import main

main()
