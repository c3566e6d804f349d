"""A connection to a Ray cluster: made quietly, watched, and ended; Ray is imported here and nowhere earlier."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from modebridge.errors import ModebridgeError, first_line

__all__ = ["LOCAL", "Connection"]

LOCAL = "ray"
"""The address that asks for a Ray of our own on this machine."""
LOOKS = 2.0
"""Seconds between two looks at the head."""
PATIENCE = 15.0
"""Seconds without an answer from the head after which it counts as lost."""

T = TypeVar("T")


class Connection:
    """Ray, connected to a cluster.

    Args:
        address: "ray" starts one on this machine; else that of a running one. A process that is connected stays so.
        cpus: how many cores a Ray of our own may use; None for all.
    """

    def __init__(self, address: str = LOCAL, cpus: int | None = None) -> None:
        self.ray: Any = _ray()
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self._connect(address, cpus)
            # Ray prints to standard output that a worker died, whatever it was told; we say what matters ourselves.
            self.ray._private.worker._worker_logs_enabled = False
        self._head = self._find_head(address)
        self._heard = time.monotonic()
        self._lost = ""

    def _connect(self, address: str, cpus: int | None) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdigit():  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            if address == LOCAL:
                self.ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
            else:
                self.ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError, AssertionError, ImportError) as error:
            raise ModebridgeError(
                f"Expected a Ray cluster at '{address}', but got '{first_line(error)}'; start one (ray start --head), "
                "set RAY_AUTH_MODE=token where it asks for a token, or use --on ray for one on this machine."
            ) from error

    def _find_head(self, address: str) -> tuple[str, int]:
        client = address.startswith("ray://")
        place = address.removeprefix("ray://") if client else self.ray.get_runtime_context().gcs_address
        host, _, port = place.rpartition(":")
        return (host, int(port)) if port.isdigit() else (place, 10001)

    def nodes(self) -> list[dict[str, float]]:
        """The resources of every node that is up."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def call(self, function: Callable[[], T]) -> T:
        """The result of some calls of Ray; the loss of the head becomes a sentence.

        Without its head a call of Ray waits, and after a minute Ray ends the whole process; so calls are made on a
        thread of their own, while this one looks after the head.
        """
        self._check()
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        while not wait([future], timeout=1).done:
            self._check()
        try:
            return future.result()
        except (ConnectionError, self.ray.exceptions.RaySystemError) as error:
            self._lost = str(error)
            raise self._sentence() from error

    def _check(self) -> None:
        """Whether the head still answers."""
        if not self._lost and time.monotonic() - self._heard > LOOKS:
            try:
                socket.create_connection(self._head, timeout=2).close()
                self._heard = time.monotonic()
            except OSError as error:
                if time.monotonic() - self._heard > PATIENCE:
                    self._lost = str(error)
        if self._lost:
            raise self._sentence()

    def _sentence(self) -> ModebridgeError:
        return ModebridgeError(
            f"Expected the head of the Ray cluster at {self._head[0]}:{self._head[1]} to stay up, but got "
            f"'{first_line(Exception(self._lost))}'; what was finished is kept: start the cluster, then the same "
            "command again."
        )

    def close(self) -> None:
        """Leave the cluster; a Ray of our own ends."""
        if self._ours and not self._lost:
            self.ray.shutdown()


def _ray() -> Any:
    # Ray reads these when it is imported and started; whoever has set them keeps what they say.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    try:
        import ray
    except ImportError as error:
        raise ModebridgeError(
            'Expected Ray to make stages on other machines, but it is not installed; pip install "modebridge[cluster]".'
        ) from error
    return ray
