"""Metrics of the server in Prometheus text format."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence

__all__ = ["Metrics"]

RECENT = 10_000
"""Number of recent requests used for quantiles."""
QUANTILES = (0.5, 0.95, 0.99)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Requests by status, their latency and batch sizes. Not thread-safe.

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
        """Count an answered request.

        Args:
            code: HTTP status.
            seconds: time from the first byte of the request to the last byte of the response.
            batch: size of the batch that its image ran in; None if none ran.
        """
        self._codes[code] += 1
        self._recent.append(seconds)
        self._seconds += seconds
        if batch is not None:
            self._sizes[batch] += 1

    def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        lines = [
            "# HELP modebridge_requests_total Answered requests by HTTP status.",
            "# TYPE modebridge_requests_total counter",
            *[f'modebridge_requests_total{{code="{code}"}} {n}' for code, n in sorted(self._codes.items())],
            "# HELP modebridge_requests_in_progress Requests that are arriving or not answered yet.",
            "# TYPE modebridge_requests_in_progress gauge",
            f"modebridge_requests_in_progress {self.in_progress}",
            "# HELP modebridge_errors_total Requests answered with an error.",
            "# TYPE modebridge_errors_total counter",
            f"modebridge_errors_total {sum(n for code, n in self._codes.items() if code >= 400)}",
            f"# HELP modebridge_request_seconds Latency of requests; quantiles over the latest {RECENT}.",
            "# TYPE modebridge_request_seconds summary",
        ]
        ordered = sorted(self._recent)
        lines += [f'modebridge_request_seconds{{quantile="{q}"}} {_quantile(ordered, q):.6f}' for q in QUANTILES]
        lines += [
            f"modebridge_request_seconds_sum {self._seconds:.6f}",
            f"modebridge_request_seconds_count {self._codes.total()}",
            "# HELP modebridge_batch_size Batch size, counted once per image.",
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
    """The smallest value that at least this share of the values does not exceed; NaN without values."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan
