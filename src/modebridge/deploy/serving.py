"""Serve an exported file over HTTP, with dynamic batching, health and metrics (the extra `serve`: LitServe)."""

from __future__ import annotations

import errno
import os
import signal
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from modebridge.errors import ModebridgeError

__all__ = ["ServeConfig", "check_config", "serve"]

HOSTS = ("127.0.0.1", "0.0.0.0", "::")


@dataclass(frozen=True)
class ServeConfig:
    """How to serve.

    Args:
        host: "127.0.0.1" answers this machine alone, "0.0.0.0" and "::" whoever reaches it.
        port: from 1024 to 65535.
        batch: the most images that run together.
        timeout_ms: how long the first image of a batch waits for others.
        max_mb: the largest request, in MB.
        queue_seconds: a request that has waited longer is told so (504).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    batch: int = 32
    timeout_ms: float = 2.0
    max_mb: float = 10.0
    queue_seconds: float = 30.0

    @property
    def max_bytes(self) -> int:
        """The largest request."""
        return int(self.max_mb * 1e6)


def serve(path: Path | str, config: ServeConfig | None = None) -> None:
    """Serve a file until the process is told to stop (Ctrl-C, SIGTERM).

    `POST /predict` takes one image: an image file as the body or in a form, or JSON with "image" as base64 of an image
    file or as nested lists (C, H, W) in [0, 1]. It answers with JSON: class, probabilities, entropy.
    `GET /health`, `GET /info` (what the file says of itself) and `GET /metrics` (Prometheus) are there too. A request
    that cannot be answered gets one sentence: 400 for a bad image, 413 for one too large.

    Args:
        path: made by `modebridge export`.
        config: how; the defaults where None.
    """
    config = config or ServeConfig()
    check_config(config)
    from modebridge.deploy.server import make_server

    server = make_server(Path(path), config)
    own = os.getpid()

    def stop(number: int, frame: object) -> None:
        # As a supervisor stops it: the way out of Ctrl-C. The HTTP process inherits this and has its own way out.
        if os.getpid() == own:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    server.run(
        host=config.host,
        port=config.port,
        num_api_servers=1,  # one process: its counts are all counts
        log_level="warning",
        generate_client_file=False,
    )


def check_config(config: ServeConfig) -> None:
    """Refuse what cannot be served, in one sentence, before any process is started."""
    for package in ("litserve", "multipart", "PIL"):
        if find_spec(package if package != "multipart" else "python_multipart") is None:
            raise ModebridgeError(
                f"Expected {package} to be installed for serving, but it is not; pip install 'modebridge[serve]'."
            )
    if config.host not in HOSTS:
        raise ModebridgeError(
            f"Expected host to be one of {', '.join(HOSTS)}, but got '{config.host}'; 127.0.0.1 is this machine alone."
        )
    if not 1024 <= config.port <= 65535:
        raise ModebridgeError(f"Expected port to be from 1024 to 65535, but got {config.port}; choose another.")
    if config.batch < 1:
        raise ModebridgeError(f"Expected batch to be at least 1, but got {config.batch}; 1 means no batching.")
    if not 0 <= config.timeout_ms <= 1000 * config.queue_seconds:
        raise ModebridgeError(
            f"Expected timeout_ms to be from 0 to {1000 * config.queue_seconds:g}, but got {config.timeout_ms}; "
            "2 is a good start."
        )
    if not config.max_mb > 0:
        raise ModebridgeError(f"Expected max_mb to be above 0, but got {config.max_mb}; 10 is a good start.")
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            why = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror
            raise ModebridgeError(
                f"Expected port {config.port} of {config.host} to be free, but got '{why}'; choose another with --port."
            ) from error
