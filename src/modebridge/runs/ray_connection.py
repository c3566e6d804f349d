"""A connection to a Ray cluster: opened quietly, monitored, and closed; Ray is not imported before it is needed."""

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
"""The address that starts a Ray on this machine."""
LOOKS = 2.0
"""Seconds between two checks of the head."""
PATIENCE = 15.0
"""Seconds without a response after which the head counts as lost."""

T = TypeVar("T")


class Connection:
    """Ray, connected to a cluster.

    Args:
        address: "ray" starts one on this machine; otherwise the address of a running one. An existing connection of the
            process is reused.
        cpus: number of cores for a Ray started here; None for all.
    """

    def __init__(self, address: str = LOCAL, cpus: int | None = None) -> None:
        self.ray: Any = _ray()
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self._connect(address, cpus)
            # Ray always prints to stdout that a worker died; we report what matters ourselves.
            self.ray._private.worker._worker_logs_enabled = False
        self._head = self._find_head(address)
        self._heard = time.monotonic()
        self._lost = ""

    def _connect(self, address: str, cpus: int | None) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            if host and port.isdigit():  # Ray itself would keep trying for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            if address == LOCAL:
                self.ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
            else:
                self.ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError, AssertionError, ImportError) as error:
            raise ModebridgeError(
                f"Expected a Ray cluster at '{address}', but got '{first_line(error)}'; start one (ray start --head), "
                "set RAY_AUTH_MODE=token if it requires a token, or use --on ray for one on this machine."
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
        """The result of some Ray calls; raises a readable error if the head is lost.

        Without its head a Ray call hangs, and after a minute Ray kills the whole process. So calls run on their own
        thread, while this one checks the head.
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
            raise self._error() from error

    def _check(self) -> None:
        """Raise an error if the head no longer responds."""
        if not self._lost and time.monotonic() - self._heard > LOOKS:
            try:
                socket.create_connection(self._head, timeout=2).close()
                self._heard = time.monotonic()
            except OSError as error:
                if time.monotonic() - self._heard > PATIENCE:
                    self._lost = str(error)
        if self._lost:
            raise self._error()

    def _error(self) -> ModebridgeError:
        return ModebridgeError(
            f"Expected the head of the Ray cluster at {self._head[0]}:{self._head[1]} to stay up, but got "
            f"'{first_line(Exception(self._lost))}'; finished work is kept: start the cluster, then run the same "
            "command again."
        )

    def close(self) -> None:
        """Disconnect from the cluster; a Ray started here is shut down."""
        if self._ours and not self._lost:
            self.ray.shutdown()


def _ray() -> Any:
    # Ray reads these on import and start; values set by the user are kept.
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    try:
        import ray
    except ImportError as error:
        raise ModebridgeError(
            'Expected Ray to run stages on other machines, but it is not installed; pip install "modebridge[cluster]".'
        ) from error
    return ray
