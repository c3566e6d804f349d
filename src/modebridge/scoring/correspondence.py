"""How closely a bridge predicts the probabilities of the network on the curve."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from modebridge.ensembles.temperature import FLOOR
from modebridge.errors import ModebridgeError
from modebridge.matching import kl_divergence
from modebridge.scoring.scores import check_probabilities


@dataclass(frozen=True)
class Correspondence:
    r"""How closely predictions match their target.

    .. math:: R^2_k = 1 - \frac{\sum_n (t_{nk} - p_{nk})^2}{\sum_n (t_{nk} - \bar t_k)^2}

    The paper reports an R2 but not how it averages over classes.

    Args:
        r2: R2 with each class weighted by its variance in the target: one minus the total squared error over the total
            variance; our default.
        r2_per_class: unweighted mean of the classes' R2.
        kl: mean over samples of KL(target || prediction), in nats.
    """

    r2: float
    r2_per_class: float
    kl: float


def correspondence(target: Tensor, prediction: Tensor) -> Correspondence:
    """Both kinds of R2, and KL, of probabilities against their target.

    In R2 a constant class counts 1 if it is predicted exactly, otherwise 0, as in scikit-learn. In KL 1e-12 is added to
    predictions before the logarithm.

    Args:
        target: probabilities (N, K) of the network on the curve, N at least 2.
        prediction: probabilities (N, K) of the bridge.

    >>> target, even = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.full((2, 2), 0.5)
    >>> correspondence(target, target).r2, correspondence(target, even).r2, round(correspondence(target, even).kl, 4)
    (1.0, 0.0, 0.6931)
    """
    target = check_probabilities(target, "the target")
    prediction = check_probabilities(prediction, "the prediction")
    if target.shape != prediction.shape:
        raise ModebridgeError(
            f"Expected target and prediction to have the same shape, but got {tuple(target.shape)} and "
            f"{tuple(prediction.shape)}; run both on the same data."
        )
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
    weights = variance if bool(variance.any()) else torch.ones_like(variance)
    divergence = kl_divergence(target, (prediction + FLOOR).log()).mean()
    # Clamped at 0: rounding may give a tiny negative divergence.
    return Correspondence(
        float((scores * weights).sum() / weights.sum()), float(scores.mean()), max(0.0, float(divergence))
    )
