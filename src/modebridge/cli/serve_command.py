"""`modebridge serve`: serve an exported file over HTTP."""

from __future__ import annotations

import signal
from pathlib import Path

from modebridge.cli.terminal import say
from modebridge.deploy.serve import ServeConfig, check_config, serve
from modebridge.errors import ModebridgeError

__all__ = ["ServeConfig", "serve_file"]


def serve_file(path: Path, config: ServeConfig) -> None:
    """Print the address, then serve."""
    check_config(config)
    address = f"http://{config.host}:{config.port}"
    say(f"Serving {path} at {address}/predict (also /health, /info, /metrics); press Ctrl-C to stop.")
    # The server handles Ctrl-C itself; after it has ended, another Ctrl-C has nothing left to stop.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(path, config)
    except ModebridgeError:
        signal.signal(signal.SIGINT, before)
        raise
