"""A connection to a Ray cluster: made quietly, watched, and ended; Ray is imported here and nowhere earlier."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from modebridge.errors import ModebridgeError, first_line

__all__ = ["LOCAL", "Connection"]

LOCAL = "ray"
"""The address that asks for a Ray of our own on this machine."""
PATIENCE = 15.0
"""Seconds without an answer from the head after which it counts as lost."""


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

    def _connect(self, address: str, cpus: int | None) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        try:
            if address == LOCAL:
                self.ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
            else:
                self.ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError, AssertionError, ImportError) as error:
            raise ModebridgeError(
                f"Expected a Ray cluster at '{address}', but got '{first_line(error)}'; start one (ray start --head), "
                "or use --on ray for one on this machine."
            ) from error

    def _find_head(self, address: str) -> tuple[str, int]:
        client = address.startswith("ray://")
        place = address.removeprefix("ray://") if client else self.ray.get_runtime_context().gcs_address
        host, _, port = place.rpartition(":")
        return (host, int(port)) if port.isdigit() else (place, 10001)

    def nodes(self) -> list[dict[str, float]]:
        """The resources of every node that is up."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Some calls of Ray; the loss of the head becomes a sentence, before Ray itself would end this process."""
        lost = ModebridgeError(
            f"Expected the head of the Ray cluster at {self._head[0]}:{self._head[1]} to stay up, but it does not "
            "answer; what was finished is kept: start the cluster, then the same command again."
        )
        try:
            with socket.create_connection(self._head, timeout=2):
                self._heard = time.monotonic()
        except OSError as error:
            if time.monotonic() - self._heard > PATIENCE:
                raise lost from error
        try:
            yield
        except (ConnectionError, self.ray.exceptions.RaySystemError) as error:
            raise lost from error

    def close(self) -> None:
        """Leave the cluster; a Ray of our own ends."""
        if self._ours:
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
