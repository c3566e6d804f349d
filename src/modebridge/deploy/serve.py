"""Serve an exported file over HTTP with dynamic batching, health and metrics (needs the `serve` extra: LitServe)."""

from __future__ import annotations

import errno
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from modebridge.deploy.image_decoding import MAX_MEGAPIXELS
from modebridge.errors import ModebridgeError

__all__ = ["ServeConfig", "Stop", "check_config", "serve"]

HOSTS = ("127.0.0.1", "0.0.0.0", "::")


@dataclass(frozen=True)
class ServeConfig:
    """Settings of the server.

    Args:
        host: address to bind: "127.0.0.1" for this machine only, "0.0.0.0" or "::" for all interfaces.
        port: port from 1024 to 65535.
        batch: maximum batch size.
        timeout_ms: how long the first image of a batch waits for others, in milliseconds.
        max_mb: maximum request size, in MB.
        queue_seconds: maximum time until a response (504 after that). If the worker is silent for half of it, /health
            returns 503.
        max_megapixels: maximum image size; larger images are refused before they are decoded (413).
        read_seconds: maximum time for a request to arrive completely (408 after that).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    batch: int = 32
    timeout_ms: float = 2.0
    max_mb: float = 10.0
    queue_seconds: float = 30.0
    max_megapixels: float = MAX_MEGAPIXELS
    read_seconds: float = 30.0

    @property
    def max_bytes(self) -> int:
        """Maximum request size in bytes."""
        return int(self.max_mb * 1e6)


def serve(path: Path | str, config: ServeConfig | None = None) -> None:
    """Serve a file until the process receives SIGINT (Ctrl-C) or SIGTERM.

    `POST /predict` takes one image: an image file as the body or in a form, or JSON with "image" as base64 of an image
    file or as nested lists (C, H, W) in [0, 1]. It returns JSON: class, probabilities, entropy. `GET /health`,
    `GET /info` (the metadata of the file) and `GET /metrics` (Prometheus) exist too. Bad requests get an error message:
    400 for a bad image, 413 for one that is too large. The worker is a separate process that imports the calling
    script, so call this under `if __name__ == "__main__":`.

    Args:
        path: a file written by `modebridge export`.
        config: settings; None for the defaults.
    """
    config = config or ServeConfig()
    check_config(config)
    stop = Stop()
    with stop.listening(), _listen(config) as listener:
        try:
            from modebridge.deploy.server import Server

            Server(Path(path), config).serve(listener, stop)
        except KeyboardInterrupt:
            # Stopped before the server was running.
            return


class Stop:
    """Handles SIGINT (Ctrl-C) and SIGTERM: before the server runs they raise KeyboardInterrupt, later they stop it.

    The first signal lets pending requests finish; a second Ctrl-C stops at once.
    """

    def __init__(self) -> None:
        self.gently: Callable[[], None] | None = None
        self.at_once: Callable[[], None] = lambda: None
        self._asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        again, self._asked = self._asked, True
        if self.gently is None:
            if not again:
                raise KeyboardInterrupt
        elif again and number == signal.SIGINT:
            self.at_once()
            os._exit(128 + number)
        else:
            self.gently()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals inside this context; Python delivers them only to the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def check_config(config: ServeConfig) -> None:
    """Check the settings, before any process is started."""
    for package in ("litserve", "multipart", "PIL"):
        if find_spec(package if package != "multipart" else "python_multipart") is None:
            raise ModebridgeError(
                f"Expected {package} to be installed for serving, but it is not; pip install 'modebridge[serve]'."
            )
    if config.host not in HOSTS:
        raise ModebridgeError(
            f"Expected host to be one of {', '.join(HOSTS)}, but got '{config.host}'; 127.0.0.1 is this machine only."
        )
    if not 1024 <= config.port <= 65535:
        raise ModebridgeError(f"Expected port to be from 1024 to 65535, but got {config.port}; choose another.")
    if config.batch < 1:
        raise ModebridgeError(f"Expected batch to be at least 1, but got {config.batch}; 1 means no batching.")
    for name, default in (("max_mb", 10), ("max_megapixels", 25), ("queue_seconds", 30), ("read_seconds", 30)):
        value = getattr(config, name)
        if not 0 < value < math.inf:
            raise ModebridgeError(f"Expected {name} to be above 0, but got {value}; try {default}.")
    if not 0 <= config.timeout_ms <= 1000 * config.queue_seconds:
        raise ModebridgeError(
            f"Expected timeout_ms to be from 0 to {1000 * config.queue_seconds:g}, but got {config.timeout_ms}; try 2."
        )
    _listen(config).close()


def _listen(config: ServeConfig) -> socket.socket:
    """Bind the port and listen: two servers can bind one port as long as neither listens."""
    listener = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        why = "another program is using it" if error.errno == errno.EADDRINUSE else error.strerror
        raise ModebridgeError(
            f"Expected port {config.port} of {config.host} to be free, but got '{why}'; choose another with --port."
        ) from error
    return listener
