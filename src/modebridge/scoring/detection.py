"""Out-of-distribution detection by an ensemble's confidence: pure functions of scores, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The area under the ROC curve: P(a > b) + P(a = b) / 2 for scores a of the data set and b of other samples.

    Args:
        inside: scores (N,) of samples of the data set, which should be high.
        outside: scores (M,) of other samples.

    >>> auroc(torch.tensor([0.9, 0.6]), torch.tensor([0.6, 0.1]))
    0.875
    """
    ours, others = _check(inside, "inside"), _check(outside, "outside")
    ranked = others.sort().values
    below, not_above = (torch.searchsorted(ranked, ours, right=right) for right in (False, True))
    # Integer counts are exact for any number of samples.
    return int((below + not_above).sum()) / (2 * len(ours) * len(others))


def fpr_at(inside: Tensor, outside: Tensor, share: float = 0.95) -> float:
    """The false positive rate at a true positive rate of `share`: FPR95 by default.

    The threshold is the highest that at least `share` of the samples inside reach.

    >>> fpr_at(torch.tensor([0.9, 0.8, 0.7, 0.2]), torch.tensor([0.75, 0.1]), share=0.75)
    0.5
    """
    ours, others = _check(inside, "inside"), _check(outside, "outside")
    if not 0 < share <= 1:
        raise ModebridgeError(f"Expected share to be above 0 and at most 1, but got {share}; the default is 0.95.")
    # 0.95 * 20 may round to 19.000000000000004, which must not require a twentieth sample.
    needed = math.ceil(share * len(ours) - 1e-9)
    threshold = ours.sort(descending=True).values[needed - 1]
    return int((others >= threshold).sum()) / len(others)


def _check(scores: Tensor, what: str) -> Tensor:
    if scores.dim() != 1 or len(scores) == 0:
        raise ModebridgeError(
            f"Expected the scores {what} to be (N,) with at least one sample, but got the shape "
            f"{tuple(scores.shape)}; pass one number per sample."
        )
    values = scores.double()
    if bool(values.isnan().any()):
        raise ModebridgeError(
            f"Expected the scores {what} to be numbers, but got NaN; check for a network that diverged."
        )
    return values
