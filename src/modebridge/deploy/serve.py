"""Serve an exported file over HTTP, with dynamic batching, health and metrics (the extra `serve`: LitServe)."""

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
    """How to serve.

    Args:
        host: "127.0.0.1" answers this machine alone, "0.0.0.0" and "::" whoever reaches it.
        port: from 1024 to 65535.
        batch: the most images that run together.
        timeout_ms: how long the first image of a batch waits for others.
        max_mb: the largest request, in MB.
        queue_seconds: a request that has waited longer is told so (504); a worker that has been silent for half of it
            makes /health say so (503).
        max_megapixels: a larger image is refused before it is unpacked (413).
        read_seconds: a request that has not arrived whole by then is cut off (408).
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
        """The largest request."""
        return int(self.max_mb * 1e6)


def serve(path: Path | str, config: ServeConfig | None = None) -> None:
    """Serve a file until the process is told to stop (Ctrl-C, SIGTERM).

    `POST /predict` takes one image: an image file as the body or in a form, or JSON with "image" as base64 of an image
    file or as nested lists (C, H, W) in [0, 1]. It answers with JSON: class, probabilities, entropy.
    `GET /health`, `GET /info` (what the file says of itself) and `GET /metrics` (Prometheus) are there too. A request
    that cannot be answered gets one sentence: 400 for a bad image, 413 for one too large. The worker is a process
    of its own that imports the calling script: call this under `if __name__ == "__main__":`.

    Args:
        path: made by `modebridge export`.
        config: how; the defaults where None.
    """
    config = config or ServeConfig()
    check_config(config)
    stop = Stop()
    with stop.listening(), _listen(config) as listener:
        try:
            from modebridge.deploy.server import Server

            Server(Path(path), config).serve(listener, stop)
        except KeyboardInterrupt:
            # Told to stop before there was anything to end.
            return


class Stop:
    """What SIGINT (Ctrl-C) and SIGTERM do: before the server runs they raise KeyboardInterrupt, then they end it.

    The first lets requests be answered that have arrived; a second Ctrl-C does not wait for them.
    """

    def __init__(self) -> None:
        self.gently: Callable[[], None] | None = None
        self.at_once: Callable[[], None] = lambda: None
        self._asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
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
        """Listen to signals inside; on other threads than the first Python has none."""
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
    for name, start in (("max_mb", 10), ("max_megapixels", 25), ("queue_seconds", 30), ("read_seconds", 30)):
        value = getattr(config, name)
        if not 0 < value < math.inf:
            raise ModebridgeError(f"Expected {name} to be above 0, but got {value}; {start} is a good start.")
    if not 0 <= config.timeout_ms <= 1000 * config.queue_seconds:
        raise ModebridgeError(
            f"Expected timeout_ms to be from 0 to {1000 * config.queue_seconds:g}, but got {config.timeout_ms}; "
            "2 is a good start."
        )
    _listen(config).close()


def _listen(config: ServeConfig) -> socket.socket:
    """Take the port; two servers may bind one as long as neither listens."""
    listener = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        why = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror
        raise ModebridgeError(
            f"Expected port {config.port} of {config.host} to be free, but got '{why}'; choose another with --port."
        ) from error
    return listener
