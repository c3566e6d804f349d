"""How well the confidence tells right answers from wrong ones, and images of the data set from others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError
from modebridge.scoring.scores import hits


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error of answering only the most confident images.

    Args:
        coverage: share of images that is answered (N,): 1/N, 2/N, ... 1.
        risk: share of wrong answers among them (N,); images of equal confidence count with their mean.
    """

    coverage: Tensor
    risk: Tensor

    @property
    def aurc(self) -> float:
        """The area under the risk-coverage curve: the mean risk over all coverages; lower is better."""
        return float(self.risk.mean())

    @property
    def excess_aurc(self) -> float:
        """The AURC minus that of the best order, in which all right answers come before all wrong ones (E-AURC)."""
        n = len(self.risk)
        wrong = round(float(self.risk[-1]) * n)
        best = (torch.arange(1, n + 1, dtype=torch.float64) - (n - wrong)).clamp_min(0) / torch.arange(1, n + 1)
        return self.aurc - float(best.mean())

    def coverage_at(self, risk: float) -> float:
        """The largest share of images that can be answered with at most this risk; 0 if none."""
        return float((self.coverage * (self.risk <= risk + 1e-12)).max())

    def accuracy_at(self, coverage: float) -> float:
        """The accuracy on this share of the images, the most confident ones; at least one image."""
        n = len(self.risk)
        return 1 - float(self.risk[max(1, math.ceil(coverage * n - 1e-9)) - 1])


def risk_coverage(probabilities: Tensor, labels: Tensor) -> RiskCoverage:
    """The risk-coverage curve of the top probability.

    >>> curve = risk_coverage(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]), torch.tensor([0, 1, 1]))
    >>> curve.risk.tolist(), curve.accuracy_at(0.3)
    ([0.0, 0.5, 0.3333333333333333], 1.0)
    """
    wrong, top = 1 - hits(probabilities, labels), probabilities.double().amax(dim=1)
    ranked, order = top.sort(descending=True, stable=True)
    _, group, sizes = torch.unique_consecutive(ranked, return_inverse=True, return_counts=True)
    means = torch.zeros(len(sizes), dtype=torch.float64, device=top.device).index_add(0, group, wrong[order]) / sizes
    numbers = torch.arange(1, len(top) + 1, dtype=torch.float64)
    return RiskCoverage(numbers / len(top), means[group].cumsum(0).cpu() / numbers)


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The area under the ROC curve: P(a > b) + P(a = b) / 2 for scores a of the data set and b of other samples.

    Args:
        inside: scores (N,) of samples of the data set, which should be high.
        outside: scores (M,) of other samples.

    >>> auroc(torch.tensor([0.9, 0.6]), torch.tensor([0.6, 0.1]))
    0.875
    """
    if not len(inside) or not len(outside) or bool(torch.cat([inside, outside]).isnan().any()):
        raise ModebridgeError("Expected scores of both sets to be numbers, but got none or NaN; check the networks.")
    ranked = outside.sort().values
    below, not_above = (torch.searchsorted(ranked, inside, right=right) for right in (False, True))
    # Integer counts are exact for any number of samples.
    return int((below + not_above).sum()) / (2 * len(inside) * len(outside))
