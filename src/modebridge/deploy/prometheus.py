"""What a server counts, in Prometheus' text format."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence

__all__ = ["Metrics"]

RECENT = 10_000
"""How many of the latest requests the quantiles are made of."""
QUANTILES = (0.5, 0.95, 0.99)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Requests by status, their latency, and the sizes of the batches that their images ran in; for one thread.

    >>> metrics = Metrics()
    >>> metrics.add(200, 0.004, 2)
    >>> print(metrics.text().splitlines()[2])
    modebridge_requests_total{code="200"} 1
    """

    def __init__(self) -> None:
        self.in_progress = 0
        self._codes: Counter[int] = Counter()
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._seconds = 0.0
        self._sizes: Counter[int] = Counter()

    def add(self, code: int, seconds: float, batch: int | None = None) -> None:
        """One request that was answered.

        Args:
            code: its HTTP status.
            seconds: from its first byte to the last of its answer.
            batch: how many images ran together with its own, itself included; None where none ran.
        """
        self._codes[code] += 1
        self._recent.append(seconds)
        self._seconds += seconds
        if batch is not None:
            self._sizes[batch] += 1

    def text(self) -> str:
        """All of it as a Prometheus server reads it."""
        lines = [
            "# HELP modebridge_requests_total Answered requests by HTTP status.",
            "# TYPE modebridge_requests_total counter",
            *[f'modebridge_requests_total{{code="{code}"}} {n}' for code, n in sorted(self._codes.items())],
            "# HELP modebridge_requests_in_progress Requests that have begun to arrive and are not answered yet.",
            "# TYPE modebridge_requests_in_progress gauge",
            f"modebridge_requests_in_progress {self.in_progress}",
            "# HELP modebridge_errors_total Requests that were answered with an error.",
            "# TYPE modebridge_errors_total counter",
            f"modebridge_errors_total {sum(n for code, n in self._codes.items() if code >= 400)}",
            f"# HELP modebridge_request_seconds Latency of requests; quantiles of the latest {RECENT}.",
            "# TYPE modebridge_request_seconds summary",
        ]
        ordered = sorted(self._recent)
        lines += [f'modebridge_request_seconds{{quantile="{q}"}} {_quantile(ordered, q):.6f}' for q in QUANTILES]
        lines += [
            f"modebridge_request_seconds_sum {self._seconds:.6f}",
            f"modebridge_request_seconds_count {self._codes.total()}",
            "# HELP modebridge_batch_size Images that ran together, counted once an image.",
            "# TYPE modebridge_batch_size histogram",
        ]
        for bound in BATCHES:
            count = sum(n for size, n in self._sizes.items() if size <= bound)
            lines.append(f'modebridge_batch_size_bucket{{le="{bound}"}} {count}')
        lines += [
            f'modebridge_batch_size_bucket{{le="+Inf"}} {self._sizes.total()}',
            f"modebridge_batch_size_sum {sum(size * n for size, n in self._sizes.items())}",
            f"modebridge_batch_size_count {self._sizes.total()}",
        ]
        return "\n".join(lines) + "\n"


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; NaN of none, as Prometheus has it."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan
