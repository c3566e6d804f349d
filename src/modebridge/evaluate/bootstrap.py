"""Percentile bootstrap intervals over samples, seeded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError

__all__ = ["Interval", "bootstrap_mean", "interval_of", "resampled_means"]

Interval: TypeAlias = tuple[float, float]
"""Low and high."""


def bootstrap_mean(values: Tensor, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Where the mean of per-sample values (N,), such as `surprisals`, would lie if as many samples were drawn again.

    It holds the spread of the test samples alone, not that of training: seeds are another matter.

    Args:
        values: one a sample.
        resamples: how many times N samples are drawn with replacement.
        level: the share of resampled means within the interval.
        seed: of the draws; one seed draws the same samples for every score.

    >>> bootstrap_mean(torch.arange(100) % 2 == 0, resamples=200)
    (0.4, 0.59)
    """
    _check(resamples, level)
    if values.dim() != 1 or len(values) == 0:
        raise ModebridgeError(
            f"Expected values to be (N,) with at least one sample, but got the shape {tuple(values.shape)}; "
            "give one number a sample."
        )
    means = [float(values[index].double().mean()) for index in _draws(len(values), resamples, seed, values.device)]
    return _percentiles(means, level)


def resampled_means(values: Tensor, *, resamples: int = 1000, seed: int = 0) -> Tensor:
    """The means of C per-sample values (N, C) over the samples of each resample: (resamples, C) in float64.

    Each resample is drawn once for all columns, so differences and ratios of columns are paired; `interval_of` makes
    intervals of them. A ratio means something only where what it is divided by is away from 0: look at that first.

    >>> means = resampled_means(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]), resamples=50)
    >>> interval_of(means[:, 0] / means[:, 1])
    (0.5, 0.5)
    """
    _check(resamples, 0.5)
    if values.dim() != 2 or len(values) == 0:
        raise ModebridgeError(
            f"Expected values to be (N, C) with at least one sample, but got the shape {tuple(values.shape)}; "
            "give one row a sample."
        )
    samples = len(values)
    # How often each sample was drawn, so that all columns take one product a resample.
    return torch.stack(
        [
            index.bincount(minlength=samples).double() @ values.double() / samples
            for index in _draws(samples, resamples, seed, values.device)
        ]
    )


def interval_of(values: Tensor, level: float = 0.95) -> Interval:
    """The percentile interval of a score's values over resamples (R,)."""
    _check(len(values), level)
    return _percentiles(values.tolist(), level)


def _check(resamples: int, level: float) -> None:
    if resamples < 1:
        raise ModebridgeError(f"Expected resamples to be at least 1, but got {resamples}; 1000 is the usual number.")
    if not 0 < level < 1:
        raise ModebridgeError(f"Expected level to be within (0, 1), but got {level}; 0.95 is the usual one.")


def _draws(samples: int, resamples: int, seed: int, device: torch.device) -> Iterator[Tensor]:
    # Drawn on the CPU, so that a score on a GPU has the same interval.
    generator = torch.Generator().manual_seed(seed)
    for _ in range(resamples):
        yield torch.randint(samples, (samples,), generator=generator).to(device)


def _percentiles(values: list[float], level: float) -> Interval:
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.quantile(torch.tensor(values, dtype=torch.float64), tails).tolist()
    return low, high
