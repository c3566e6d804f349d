"""Telling images of the data set from others by how sure an ensemble is: pure functions of scores, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.evaluate.scores import check_probabilities

__all__ = ["auroc", "fpr_at", "negative_entropy", "top_probability"]


def top_probability(probabilities: Tensor) -> Tensor:
    """The probability of each sample's top class: (N,), high where the ensemble is sure."""
    return check_probabilities(probabilities).amax(dim=1)


def negative_entropy(probabilities: Tensor) -> Tensor:
    """The sum of p log p over each row, in nats: (N,), at most 0, high where the ensemble is sure."""
    table = check_probabilities(probabilities)
    negative: Tensor = torch.special.xlogy(table, table).sum(dim=1)
    return negative


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The area under the ROC curve: P(a > b) + P(a = b) / 2 for scores a of the data set and b of other samples.

    Args:
        inside: (N,) scores of samples of the data set, high where they look like it.
        outside: (M,) scores of other samples.

    >>> auroc(torch.tensor([0.9, 0.6]), torch.tensor([0.6, 0.1]))
    0.875
    """
    ours, others = _check(inside, "inside"), _check(outside, "outside")
    ranked = others.sort().values
    below, not_above = (torch.searchsorted(ranked, ours, right=right) for right in (False, True))
    # Counts: exact up to 2^53, however many samples.
    return int((below + not_above).sum()) / (2 * len(ours) * len(others))


def fpr_at(inside: Tensor, outside: Tensor, share: float = 0.95) -> float:
    """The share of other samples that are taken for the data set where `share` of its own are: FPR95.

    The threshold is the highest that at least `share` of the samples inside reach; all that reach it are taken.

    >>> fpr_at(torch.tensor([0.9, 0.8, 0.7, 0.2]), torch.tensor([0.75, 0.1]), share=0.75)
    0.5
    """
    ours, others = _check(inside, "inside"), _check(outside, "outside")
    if not 0 < share <= 1:
        raise ModebridgeError(f"Expected share to be above 0 and at most 1, but got {share}; 0.95 is usual.")
    # 0.95 * 20 is 19.000000000000004 in some orders of rounding: not a reason to take a twentieth sample.
    needed = math.ceil(share * len(ours) - 1e-9)
    threshold = ours.sort(descending=True).values[needed - 1]
    return int((others >= threshold).sum()) / len(others)


def _check(scores: Tensor, what: str) -> Tensor:
    if scores.dim() != 1 or len(scores) == 0:
        raise ModebridgeError(
            f"Expected the scores {what} to be (N,) with at least one sample, but got the shape "
            f"{tuple(scores.shape)}; give one number per sample."
        )
    values = scores.double()
    if bool(values.isnan().any()):
        raise ModebridgeError(
            f"Expected the scores {what} to be numbers, but got NaN; look for a network that diverged."
        )
    return values
