"""Load test of a server with many concurrent clients that compare every response with the expected one."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from modebridge.deploy.timing import Spread
from modebridge.errors import ModebridgeError

__all__ = ["Load", "check_distinct", "load_server"]


@dataclass(frozen=True)
class Load:
    """Results of a load test.

    Args:
        asked: number of requests sent.
        right: responses that match their image.
        wrong: responses that do not: mixed up or wrong.
        lost: requests without a response of status 200.
        seconds: time from the first request to the last response.
        latency: median, and 5th and 95th percentiles instead of quartiles, in seconds.
        mean_batch: mean size of the batch that an image ran in.
    """

    asked: int
    right: int
    wrong: int
    lost: int
    seconds: float
    latency: Spread
    mean_batch: float

    @property
    def per_second(self) -> float:
        """Right responses per second."""
        return self.right / self.seconds


def load_server(
    url: str,
    images: Sequence[bytes],
    expected: NDArray[np.float64],
    *,
    clients: int = 32,
    seconds: float = 5.0,
    tolerance: float = 1e-5,
) -> Load:
    """Send requests from many threads, each with its own connection, for some seconds.

    Args:
        url: URL of the server, such as "http://127.0.0.1:8000".
        images: bodies of the requests: image files.
        expected: (N, K) probabilities of each image; they must differ by far more than the tolerance.
        clients: number of concurrent clients.
        seconds: time after which no client starts another request.
        tolerance: tolerance of a probability.
    """
    check_distinct(expected, tolerance)
    place = urlsplit(url)
    turn = itertools.count()
    by_client: list[list[tuple[float, bool | None, int]]] = [[] for _ in range(clients)]
    began = time.perf_counter()

    def client(records: list[tuple[float, bool | None, int]]) -> None:
        link = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
        while time.perf_counter() < began + seconds:
            k = next(turn) % len(images)
            start, right, size = time.perf_counter(), None, 0
            try:
                link.request("POST", "/predict", images[k], {"Content-Type": "application/octet-stream"})
                response = link.getresponse()
                body = response.read()
                if response.status == 200:
                    probabilities = np.asarray(json.loads(body)["probabilities"])
                    right = bool(np.abs(probabilities - expected[k]).max() <= tolerance)
                    size = int(response.headers["x-batch-size"])
            except (OSError, http.client.HTTPException):
                link.close()
            records.append((time.perf_counter() - start, right, size))
        link.close()

    threads = [threading.Thread(target=client, args=(records,)) for records in by_client]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    every = [record for records in by_client for record in records]
    times = np.asarray([seconds for seconds, _, _ in every])
    middle, low, high = np.percentile(times, [50, 5, 95])
    sizes = [size for _, _, size in every if size]
    return Load(
        asked=len(every),
        right=sum(right is True for _, right, _ in every),
        wrong=sum(right is False for _, right, _ in every),
        lost=sum(right is None for _, right, _ in every),
        seconds=took,
        latency=Spread(float(middle), float(low), float(high)),
        mean_batch=float(np.mean(sizes)) if sizes else 0.0,
    )


def check_distinct(expected: NDArray[np.float64], tolerance: float) -> None:
    """Refuse images whose probabilities are so similar that a mix-up would go unnoticed."""
    distances = np.abs(expected[:, None] - expected[None]).max(axis=-1)
    np.fill_diagonal(distances, np.inf)
    closest = float(distances.min())
    if closest <= 10 * tolerance:
        raise ModebridgeError(
            f"Expected probabilities that differ by more than {10 * tolerance:g}, but those of two images differ by "
            f"{closest:.1g}; choose images that the network can tell apart."
        )
