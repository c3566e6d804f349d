"""`python -m modebridge` is `modebridge`."""

from modebridge.cli import main

main()
