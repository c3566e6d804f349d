"""How closely a bridge predicts the probabilities of the network on the curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError
from modebridge.matching import kl_divergence
from modebridge.scoring.scores import check_probabilities


def r2(
    target: Tensor, prediction: Tensor, average: Literal["variance_weighted", "uniform"] = "variance_weighted"
) -> float:
    r"""The coefficient of determination of probabilities, class by class, then averaged.

    .. math:: R^2_k = 1 - \frac{\sum_n (t_{nk} - p_{nk})^2}{\sum_n (t_{nk} - \bar t_k)^2}

    The paper reports an R2 but not how it averages over classes. Our default, "variance_weighted", weights each class
    by its variance in the target: one minus the total squared error over the total variance. A constant class counts
    1 if it is predicted exactly, otherwise 0, as in scikit-learn.

    Args:
        target: probabilities (N, K) of the network on the curve, N at least 2.
        prediction: probabilities (N, K) of the bridge.
        average: "variance_weighted", or "uniform" (the plain mean over classes).

    >>> target = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> r2(target, target), r2(target, torch.full((2, 2), 0.5))
    (1.0, 0.0)
    """
    if average not in ("variance_weighted", "uniform"):
        raise ModebridgeError(
            f"Expected average to be 'variance_weighted' or 'uniform', but got '{average}'; choose one of the two."
        )
    target, prediction = _pair(target, prediction)
    if len(target) < 2:
        raise ModebridgeError(
            "Expected R2 to have at least 2 samples, but got 1, which has no variance; use more data."
        )
    error = (target - prediction).square().sum(dim=0)
    # A constant class has variance 0 by definition, without the rounding error of its mean.
    constant = (target == target[0]).all(dim=0)
    variance = (target - target.mean(dim=0)).square().sum(dim=0).masked_fill(constant, 0.0)
    # Where the variance is 0 the score is 1 or 0.
    scores = torch.where(variance > 0, 1 - error / variance, (error == 0).double())
    if average == "uniform" or not bool((variance > 0).any()):
        return float(scores.mean())
    return float((scores * variance).sum() / variance.sum())


def kl(target: Tensor, prediction: Tensor) -> float:
    """The mean over samples of KL(target || prediction) in nats; 1e-12 is added to predictions before the logarithm.

    >>> round(kl(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])), 4)
    0.6931
    """
    target, prediction = _pair(target, prediction)
    # Clamped at 0: rounding may give a tiny negative value.
    return max(0.0, float(kl_divergence(target, (prediction + FLOOR).log()).mean()))


@dataclass(frozen=True)
class Correspondence:
    """How closely predictions match their target.

    Args:
        r2: R2 weighted by the variance of each class; our default.
        r2_per_class: unweighted mean of the classes' R2.
        kl: mean of KL(target || prediction), in nats.
    """

    r2: float
    r2_per_class: float
    kl: float


def correspondence(target: Tensor, prediction: Tensor) -> Correspondence:
    """Both kinds of R2, and KL, of probabilities (N, K) against their target (N, K), N at least 2."""
    return Correspondence(r2(target, prediction), r2(target, prediction, "uniform"), kl(target, prediction))


def _pair(target: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
    target = check_probabilities(target, "the target")
    prediction = check_probabilities(prediction, "the prediction")
    if target.shape != prediction.shape:
        raise ModebridgeError(
            f"Expected target and prediction to have the same shape, but got {tuple(target.shape)} and "
            f"{tuple(prediction.shape)}; run both on the same data."
        )
    return target, prediction
