"""Bootstrap intervals against scipy's, and what must hold for any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap

from modebridge.errors import ModebridgeError
from modebridge.scoring import (
    accuracy,
    bootstrap_mean,
    brier,
    hits,
    interval_of,
    nll,
    resampled_means,
    squared_errors,
    surprisals,
)
from tests.scoring.test_scores import sample


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize(("score", "each"), [(accuracy, hits), (nll, surprisals), (brier, squared_errors)])
def test_is_scipy_s_percentile_interval(score, each, level):
    p, y = sample(400, 5)
    assert score(p, y) == pytest.approx(float(each(p, y).mean()))
    low, high = bootstrap_mean(each(p, y), resamples=1500, level=level)
    known = bootstrap(
        (each(p, y).numpy(),),
        np.mean,
        n_resamples=1500,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    slack = 0.12 * (known.high - known.low)
    assert low == pytest.approx(known.low, abs=slack)
    assert high == pytest.approx(known.high, abs=slack)


def test_seeds():
    p, y = sample(100, 3)
    values = surprisals(p, y)
    first = bootstrap_mean(values, resamples=50, seed=1)
    torch.manual_seed(5)  # the global generator has no say
    assert bootstrap_mean(values, resamples=50, seed=1) == first
    assert bootstrap_mean(values, resamples=50, seed=2) != first


def test_the_normal_interval_of_a_mean():
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = 1.96 * float(values.std()) / 5000**0.5
    low, high = bootstrap_mean(values, resamples=2000)
    assert low == pytest.approx(float(values.mean()) - error, abs=0.15 * error)
    assert high == pytest.approx(float(values.mean()) + error, abs=0.15 * error)


def test_one_sample_has_no_spread():
    p, y = sample(1, 3)
    assert bootstrap_mean(surprisals(p, y), resamples=10) == pytest.approx((nll(p, y), nll(p, y)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resamples": 0}, "resamples"),
        ({"level": 0.0}, "level"),
        ({"level": 1.0}, "level"),
        ({"level": 95}, "level"),
    ],
)
def test_refuses_options(options, words):
    p, y = sample(10, 3)
    with pytest.raises(ModebridgeError, match=f"Expected {words}"):
        bootstrap_mean(surprisals(p, y), **options)


def test_refuses_what_cannot_be_scored():
    with pytest.raises(ModebridgeError, match="at least one sample"):
        bootstrap_mean(torch.zeros(0))


def test_means_of_columns_are_those_of_one_column_each():
    """Every column sees the same draws as `bootstrap_mean`, so what is made of columns is paired."""
    values = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    means = resampled_means(values)
    for k in range(3):
        assert interval_of(means[:, k]) == pytest.approx(bootstrap_mean(values[:, k]), abs=1e-12)
    assert interval_of(means[:, 0] - means[:, 1]) == pytest.approx(
        bootstrap_mean(values[:, 0] - values[:, 1]), abs=1e-12
    )
    with pytest.raises(ModebridgeError, match=r"to be \(N, C\)"):
        resampled_means(torch.zeros(3))
