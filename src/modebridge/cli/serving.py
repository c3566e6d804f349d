"""`modebridge serve`: an exported file over HTTP."""

from __future__ import annotations

from pathlib import Path

from modebridge.cli.terminal import say
from modebridge.deploy.serving import ServeConfig, check_config, serve

__all__ = ["serve_file"]


def serve_file(path: Path, *, host: str, port: int, batch: int, timeout_ms: float, max_mb: float) -> None:
    """Say where, then serve."""
    config = ServeConfig(host, port, batch, timeout_ms, max_mb)
    check_config(config)
    say(f"Serving {path} at http://{host}:{port}/predict (also /health, /info, /metrics); Ctrl-C stops it.")
    serve(path, config)
