"""Bootstrap intervals against scipy's, and what must hold for any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap

from modebridge.errors import ModebridgeError
from modebridge.scoring import bootstrap_mean, hits, interval_of, resampled_means, surprisals
from tests.scoring.test_scores import sample


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("each", [hits, surprisals])
def test_is_scipy_s_percentile_interval(each, level):
    values = each(*sample(400, 5))
    low, high = bootstrap_mean(values, resamples=1500, level=level)
    known = bootstrap(
        (values.numpy(),),
        np.mean,
        n_resamples=1500,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    slack = 0.12 * (known.high - known.low)
    assert low == pytest.approx(known.low, abs=slack)
    assert high == pytest.approx(known.high, abs=slack)


def test_the_normal_interval_of_a_mean():
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = 1.96 * float(values.std()) / 5000**0.5
    low, high = bootstrap_mean(values, resamples=2000)
    assert low == pytest.approx(float(values.mean()) - error, abs=0.15 * error)
    assert high == pytest.approx(float(values.mean()) + error, abs=0.15 * error)


def test_seeds_and_one_sample():
    values = surprisals(*sample(100, 3))
    first = bootstrap_mean(values, resamples=50, seed=1)
    torch.manual_seed(5)  # the global generator has no say
    assert bootstrap_mean(values, resamples=50, seed=1) == first
    assert bootstrap_mean(values, resamples=50, seed=2) != first
    assert bootstrap_mean(values[:1], resamples=10) == pytest.approx((float(values[0]),) * 2)


def test_columns_are_paired():
    """Every column sees the same draws, one by one and in blocks."""
    values = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = resampled_means(values)
    generator = torch.Generator().manual_seed(0)
    by_hand = torch.stack([values[torch.randint(300, (300,), generator=generator)].mean(0) for _ in range(1000)])
    torch.testing.assert_close(means, by_hand, rtol=0, atol=1e-12)
    difference = interval_of(means[:, 0] - means[:, 1])
    assert difference == pytest.approx(bootstrap_mean(values[:, 0] - values[:, 1]), abs=1e-12)


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        (torch.ones(9), {"resamples": 0}, "Expected resamples"),
        *[(torch.ones(9), {"level": level}, "Expected level") for level in (0.0, 1.0, 95)],
        (torch.zeros(0), {}, "at least one sample"),
        (torch.zeros(3, 2), {}, r"to be \(N,\)"),
    ],
)
def test_refusals(values, options, words):
    with pytest.raises(ModebridgeError, match=words):
        bootstrap_mean(values, **options)
