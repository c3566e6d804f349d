"""Load a server: many clients at a time, every answer compared with the one that its own image must get."""

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
    """What a load test found.

    Args:
        asked: requests sent.
        right: answers that belong to their image.
        wrong: answers that do not: mixed up or miscalculated.
        lost: requests without an answer of status 200.
        seconds: from the first request to the last answer.
        latency: median, and the 5th and 95th percentile in place of quartiles, in seconds.
        mean_batch: the mean size of the batch that an image ran in.
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
        """Right answers a second."""
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
    """Ask for answers from many threads, each with a connection of its own, for some seconds.

    Args:
        url: of the server, as "http://127.0.0.1:8000".
        images: bodies of requests: image files.
        expected: (N, K) probabilities of each image; they must differ by far more than the tolerance.
        clients: how many ask at the same time.
        seconds: after which no client begins another request.
        tolerance: of a probability.
    """
    check_distinct(expected, tolerance)
    place = urlsplit(url)
    turn = itertools.count()
    found: list[list[tuple[float, bool | None, int]]] = [[] for _ in range(clients)]
    begin = time.perf_counter()

    def client(own: list[tuple[float, bool | None, int]]) -> None:
        link = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
        while time.perf_counter() < begin + seconds:
            k = next(turn) % len(images)
            start, right, size = time.perf_counter(), None, 0
            try:
                link.request("POST", "/predict", images[k], {"Content-Type": "application/octet-stream"})
                answer = link.getresponse()
                body = answer.read()
                if answer.status == 200:
                    said = np.asarray(json.loads(body)["probabilities"])
                    right = bool(np.abs(said - expected[k]).max() <= tolerance)
                    size = int(answer.headers["x-batch-size"])
            except (OSError, http.client.HTTPException):
                link.close()
            own.append((time.perf_counter() - start, right, size))
        link.close()

    threads = [threading.Thread(target=client, args=(own,)) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    every = [one for own in found for one in own]
    times = np.asarray([one[0] for one in every])
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
    """Refuse images whose answers are so alike that a mix-up would not be seen."""
    apart = np.abs(expected[:, None] - expected[None]).max(axis=-1)
    np.fill_diagonal(apart, np.inf)
    closest = float(apart.min())
    if closest <= 10 * tolerance:
        raise ModebridgeError(
            f"Expected answers that differ by more than {10 * tolerance:g}, but two images differ by {closest:.1g}; "
            "choose images that the network tells apart."
        )
