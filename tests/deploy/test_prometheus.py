"""What a server counts, against counting by hand."""

from __future__ import annotations

import re

import numpy as np

from modebridge.deploy.prometheus import Metrics


def numbers(metrics):
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_nothing_yet():
    found = numbers(Metrics())
    assert found["modebridge_errors_total"] == 0
    assert np.isnan(found['modebridge_request_seconds{quantile="0.5"}'])
    assert found['modebridge_batch_size_bucket{le="+Inf"}'] == 0


def test_counts_and_quantiles():
    metrics, times = Metrics(), np.random.default_rng(0).random(1000)
    for k, seconds in enumerate(times):
        metrics.add(200 if k % 10 else 400, seconds, 1 + k % 3 if k % 10 else None)
    found = numbers(metrics)
    assert found['modebridge_requests_total{code="200"}'] == 900
    assert found["modebridge_errors_total"] == 100
    for share in (0.5, 0.95, 0.99):
        reference = np.quantile(times, share, method="inverted_cdf")
        assert abs(found[f'modebridge_request_seconds{{quantile="{share}"}}'] - reference) < 1e-6
    assert abs(found["modebridge_request_seconds_sum"] - times.sum()) < 1e-5
    sizes = [1 + k % 3 for k in range(1000) if k % 10]
    assert found['modebridge_batch_size_bucket{le="2"}'] == sum(size <= 2 for size in sizes)
    assert found['modebridge_batch_size_bucket{le="256"}'] == found["modebridge_batch_size_count"] == 900
    assert found["modebridge_batch_size_sum"] == sum(sizes)


def test_every_line_has_prometheus_form():
    metrics = Metrics()
    metrics.add(200, 0.1, 1)
    form = re.compile(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]+"\})? [-+0-9.eE]+|\w+\{quantile="[0-9.]+"\} nan')
    assert metrics.text().endswith("\n")
    assert all(form.fullmatch(line) for line in metrics.text().splitlines())
