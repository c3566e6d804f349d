"""Scores of probabilities against labels, in float64; their bootstrap intervals; what an NLL is worth in networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError, plural

Interval: TypeAlias = tuple[float, float]
"""Lower and upper bound."""

FEW = 500
"""With fewer samples, 95 % bootstrap intervals hold the true NLL less often: 87 % of the time with 50 images."""

SLACK = 1e-3
"""Maximum distance of a row's sum from 1, unless the dtype is coarser (bfloat16: 1/128)."""


def check_probabilities(probabilities: Tensor, what: str = "probabilities") -> Tensor:
    """Check that a tensor is a table of probabilities (N, K), N and K at least 1, and return it as float64."""
    if probabilities.dim() != 2:
        raise ModebridgeError(
            f"Expected {what} to be (N, K), but got the shape {tuple(probabilities.shape)}; "
            "pass one row per sample and one column per class."
        )
    samples, classes = probabilities.shape
    if samples == 0:
        raise ModebridgeError(f"Expected {what} to have at least one sample, but got none; pass some data.")
    if classes == 0:
        raise ModebridgeError(f"Expected {what} to have at least one class, but got none; pass one column per class.")
    if probabilities.is_complex():
        raise ModebridgeError(
            f"Expected {what} to be real numbers, but got {probabilities.dtype}; pass the softmax of the logits."
        )
    table = probabilities.double()
    if not bool(torch.isfinite(table).all()):
        rows = int((~torch.isfinite(table)).any(dim=1).sum())
        raise ModebridgeError(
            f"Expected {what} to be finite, but got NaN or Inf in {rows} of {samples} rows; "
            "check for a network that diverged."
        )
    fix = "pass probabilities, not logits (their softmax, in float32)"
    if bool((table < 0).any()):
        raise ModebridgeError(f"Expected {what} to be at least 0, but got {float(table.min()):.4g}; {fix}.")
    sums = table.sum(dim=1)
    worst = float(sums[(sums - 1).abs().argmax()])
    coarse = torch.finfo(probabilities.dtype).eps if probabilities.is_floating_point() else 0.0
    if abs(worst - 1) > max(SLACK, coarse):
        raise ModebridgeError(f"Expected each row of {what} to sum to 1, but got a sum of {worst:.4g}; {fix}.")
    return table


def check(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Check probabilities (N, K) and labels (N,), integers in [0, K); return them as float64 and int64."""
    table = check_probabilities(probabilities)
    samples, classes = table.shape
    if labels.dim() != 1:
        raise ModebridgeError(
            f"Expected labels to be (N,), but got the shape {tuple(labels.shape)}; "
            "pass one class index per sample, not one-hot rows."
        )
    if len(labels) != samples:
        raise ModebridgeError(
            f"Expected one label per sample, but got {len(labels)} labels for {samples} samples; "
            "take both from the same pass over the data."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ModebridgeError(f"Expected labels to be integers, but got {labels.dtype}; pass class indices as int64.")
    numbers = labels.long()
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= classes:
        raise ModebridgeError(
            f"Expected labels to be in [0, {classes}), but got {low if low < 0 else high}; "
            "use a network and data with the same classes, numbered from 0."
        )
    return table, numbers


def hits(probabilities: Tensor, labels: Tensor) -> Tensor:
    """1 for each sample whose top class is its label, otherwise 0: (N,) in float64."""
    table, numbers = check(probabilities, labels)
    return (table.argmax(dim=1) == numbers).double()


def surprisals(probabilities: Tensor, labels: Tensor) -> Tensor:
    """-log(p + 1e-12) of each sample's true class, in nats: (N,) in float64."""
    table, numbers = check(probabilities, labels)
    return -(table.gather(1, numbers.view(-1, 1)).squeeze(1) + FLOOR).log()


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """The share of samples whose top class is their label.

    >>> accuracy(torch.tensor([[0.7, 0.3], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    return float(hits(probabilities, labels).mean())


def nll(probabilities: Tensor, labels: Tensor) -> float:
    """The negative log-likelihood: the mean of -log(p + 1e-12) of the true classes, in nats.

    >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([0])), 4)
    0.6931
    """
    return float(surprisals(probabilities, labels).mean())


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """The Brier score: squared error summed over classes, mean over samples; from 0 to 2.

    >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 0]))
    1.25
    """
    table, numbers = check(probabilities, labels)
    of_labels = table.gather(1, numbers.view(-1, 1)).squeeze(1)
    # |p - y|^2 without a one-hot table: sum p^2 - 2 p_y + 1.
    return float((table.square().sum(dim=1) - 2 * of_labels + 1).mean())


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: confidence and accuracy by bins of the top probability.

    Args:
        edges: bin edges (bins + 1,); bin b holds the samples in (edges[b], edges[b + 1]].
        count: samples per bin (bins,).
        confidence: mean top probability per bin (bins,), NaN in empty bins.
        accuracy: share of correct predictions per bin (bins,), NaN in empty bins.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Accuracy and confidence in bins of equal width of the top probability.

    >>> diagram = reliability(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]), bins=2)
    >>> diagram.count.tolist(), diagram.accuracy.tolist()
    ([0, 2], [nan, 0.5])
    """
    if bins < 1:
        raise ModebridgeError(f"Expected bins to be at least 1, but got {bins}; the paper uses 15.")
    table, numbers = check(probabilities, labels)
    top, guess = table.max(dim=1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=table.device)
    # Only the inner edges: a row that sums to slightly more than 1 still falls into the last bin.
    index = torch.bucketize(top, edges[1:-1])
    count = torch.bincount(index, minlength=bins)
    right = (guess == numbers).double()
    return Reliability(
        edges=edges,
        count=count,
        confidence=torch.bincount(index, weights=top, minlength=bins) / count,
        accuracy=torch.bincount(index, weights=right, minlength=bins) / count,
    )


def ece(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """The expected calibration error: |accuracy - confidence| of each bin, weighted by its share of samples.

    Bins of the top probability have equal width in [0, 1], each (low, high]. (The paper closes them at the other end
    and prints edges b / K; the authors' code does it this way.)

    >>> round(ece(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1])), 4)
    0.45
    """
    diagram = reliability(probabilities, labels, bins)
    gaps = (diagram.accuracy - diagram.confidence).abs().nan_to_num(0.0)
    return float((gaps * diagram.count).sum() / diagram.count.sum())


def dee(nll: float, reference: Sequence[float]) -> float:
    r"""The smallest (real-valued) size at which the deep ensemble is at least as good.

    .. math:: \mathrm{DEE} = \min \{ m : \mathrm{NLL}_{\mathrm{DE-}m} \le \mathrm{NLL} \}

    with NLL_DE interpolated linearly between integer sizes. (The paper prints the inequality the other way round,
    which would give every better model the DEE of the worst.) If the reference is not monotonic, the first segment
    in which it falls to the value counts, so the DEE never grows with the NLL.

    Like the authors, it extrapolates: below 1 with the slope from DE-1 to DE-2, above the largest size with the slope
    of the last segment. A segment that does not fall cannot be extended: the DEE is then `inf` for a value better than
    the whole reference, and `-inf` for one worse than DE-1.

    Args:
        nll: the (calibrated) NLL to convert.
        reference: NLLs of DE-1, DE-2, ... DE-m on the same data, m at least 2.

    >>> reference = [1.75, 1.5, 1.375]
    >>> dee(1.4375, reference), dee(1.25, reference)
    (2.5, 4.0)

    Reference: Ashukha et al., Pitfalls of in-domain uncertainty estimation and ensembling in deep learning, 2020.
    """
    values = [float(value) for value in reference]
    if len(values) < 2:
        raise ModebridgeError(
            f"Expected the reference to have at least DE-1 and DE-2, but got {plural(len(values), 'value')}; "
            "evaluate a deep ensemble of two modes."
        )
    if not all(map(math.isfinite, values)):
        raise ModebridgeError(f"Expected the reference to be finite, but got {values}; check the deep ensembles.")
    if math.isnan(nll):
        raise ModebridgeError("Expected the NLL to be a number, but got nan; check for a network that diverged.")
    if nll > values[0]:
        drop = values[0] - values[1]
        return 1.0 - (nll - values[0]) / drop if drop > 0 else -math.inf
    for size, value in enumerate(values, start=1):
        if value <= nll:
            # The reference was above the value up to here, so this segment falls. At size 1 they are equal.
            before = values[max(size - 2, 0)]
            return size - (nll - value) / (before - value) if nll > value else float(size)
    drop = values[-2] - values[-1]
    return len(values) + (values[-1] - nll) / drop if drop > 0 else math.inf


def resampled_means(values: Tensor, resamples: int = 1000) -> Tensor:
    """The means of C per-sample values (N, C), such as `surprisals`, over bootstrap resamples: (resamples, C).

    `interval_of` turns them into intervals, which cover the variation of the test samples only, not that of training
    seeds. Every call draws the same samples, once for all columns, so differences and ratios of columns are paired. A
    ratio is meaningful only if its denominator is away from 0: check that first.

    Args:
        values: one row per sample, one column per score.
        resamples: number of times N samples are drawn with replacement.

    >>> means = resampled_means(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]), resamples=50)
    >>> interval_of(means[:, 0] / means[:, 1])
    (0.5, 0.5)
    """
    if values.dim() != 2 or len(values) == 0:
        raise ModebridgeError(
            f"Expected values to be (N, C) with at least one sample, but got the shape {tuple(values.shape)}; "
            "pass one row per sample."
        )
    samples, wide = len(values), values.double()
    # Drawn on the CPU, so that scores on a GPU have the same interval.
    generator = torch.Generator().manual_seed(0)
    means: list[Tensor] = []
    # Many at a time, in the same order as one by one, but never more than some MB.
    for first in range(0, resamples, block := max(1, 100_000 // samples)):
        shape = (min(block, resamples - first), samples)
        # Counts of each sample, so that all columns need only one product per resample.
        counts = [row.bincount(minlength=samples) for row in torch.randint(samples, shape, generator=generator)]
        means.append(torch.stack(counts).to(wide) @ wide / samples)
    return torch.cat(means)


def interval_of(values: Tensor) -> Interval:
    """The 95 % percentile interval of a score's values (R,) over resamples; too short for fewer samples than `FEW`."""
    tails = torch.tensor([(1 - 0.95) / 2, (1 + 0.95) / 2], dtype=torch.float64)
    low, high = torch.quantile(values.double().cpu(), tails).tolist()
    return low, high
