"""Percentile bootstrap intervals over samples, seeded."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError

Interval: TypeAlias = tuple[float, float]
"""Lower and upper bound."""


def bootstrap_mean(values: Tensor, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Bootstrap interval for the mean of per-sample values (N,), such as `surprisals`.

    It covers the variation of the test samples only, not that of training seeds.

    Args:
        values: one value per sample.
        resamples: number of times N samples are drawn with replacement.
        level: share of resampled means within the interval.
        seed: seed of the draws; the same seed draws the same samples for every score.

    >>> bootstrap_mean(torch.arange(100) % 2 == 0, resamples=200)
    (0.4, 0.59)
    """
    if values.dim() != 1:
        raise ModebridgeError(
            f"Expected values to be (N,) with at least one sample, but got the shape {tuple(values.shape)}; "
            "pass one number per sample."
        )
    return interval_of(resampled_means(values[:, None], resamples=resamples, seed=seed)[:, 0], level)


def resampled_means(values: Tensor, *, resamples: int = 1000, seed: int = 0) -> Tensor:
    """The means of C per-sample values (N, C) over each resample: (resamples, C) in float64.

    Each resample is drawn once for all columns, so differences and ratios of columns are paired; `interval_of` turns
    them into intervals. A ratio is meaningful only if its denominator is away from 0: check that first.

    >>> means = resampled_means(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]), resamples=50)
    >>> interval_of(means[:, 0] / means[:, 1])
    (0.5, 0.5)
    """
    if resamples < 1:
        raise ModebridgeError(f"Expected resamples to be at least 1, but got {resamples}; the default is 1000.")
    if values.dim() != 2 or len(values) == 0:
        raise ModebridgeError(
            f"Expected values to be (N, C) with at least one sample, but got the shape {tuple(values.shape)}; "
            "pass one row per sample."
        )
    samples, wide = len(values), values.double()
    # Drawn on the CPU, so that scores on a GPU have the same interval.
    generator = torch.Generator().manual_seed(seed)
    means: list[Tensor] = []
    # Many at a time, in the same order as one by one, but never more than some MB.
    for first in range(0, resamples, block := max(1, 100_000 // samples)):
        shape = (min(block, resamples - first), samples)
        # Counts of each sample, so that all columns need only one product per resample.
        counts = [row.bincount(minlength=samples) for row in torch.randint(samples, shape, generator=generator)]
        means.append(torch.stack(counts).to(wide) @ wide / samples)
    return torch.cat(means)


def interval_of(values: Tensor, level: float = 0.95) -> Interval:
    """The percentile interval of a score's values (R,) over resamples."""
    if not 0 < level < 1:
        raise ModebridgeError(f"Expected level to be within (0, 1), but got {level}; the default is 0.95.")
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.quantile(values.double().cpu(), tails).tolist()
    return low, high
