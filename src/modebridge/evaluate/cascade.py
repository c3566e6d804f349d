"""Cascades: one member answers alone where it is sure; all others are asked about the remaining images only."""

from __future__ import annotations

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError

__all__ = ["ALL", "cascaded", "choose_threshold"]

ALL = 2.0
"""A threshold that no confidence reaches: every image takes the long way."""


def choose_threshold(confidences: Tensor, base_cost: float, extra_cost: float, average_cost: float) -> float:
    """The highest threshold whose average cost on these images is at most what was asked for.

    The least confident images take the long way. Images of the same confidence go the same way, so the cost may be a
    little less than what was asked for.

    Args:
        confidences: (N,), the first base's top probabilities on validation images, after its own temperature.
        base_cost: of the first base, for every image.
        extra_cost: of all the rest, for an image that takes the long way.
        average_cost: what an image may cost on average.

    >>> choose_threshold(torch.tensor([0.5, 0.6, 0.7, 0.9]), 1.0, 0.2, 1.1)
    0.699999988079071
    """
    if confidences.dim() != 1 or not len(confidences):
        raise ModebridgeError(
            f"Expected confidences to be (N,) with N at least 1, but got {tuple(confidences.shape)}; "
            "give those of the validation images."
        )
    if not average_cost >= base_cost > 0 or not extra_cost >= 0:
        raise ModebridgeError(
            f"Expected an average cost of at least the base's {base_cost:g}, but got {average_cost:g}; ask for more."
        )
    if base_cost + extra_cost <= average_cost:
        return ALL
    ordered = confidences.double().sort().values
    # An image takes the long way if its confidence is below the threshold: at ordered[n] the n lowest do.
    most = int((average_cost - base_cost) / extra_cost * len(ordered) + 1e-9)
    # A cost short of everybody's by rounding alone is everybody's.
    return float(ordered[most]) if most < len(ordered) else ALL


def cascaded(short: Tensor, long: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The answers (N, K) behind a threshold, and which images (N,) took the long way.

    Args:
        short: (N, K) calibrated probabilities of the first member alone.
        long: (N, K) those of all members.
        threshold: images whose first member is at least this confident get its answer alone.

    >>> cascaded(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([[0.8, 0.2], [0.3, 0.7]]), 0.7)
    (tensor([[0.9000, 0.1000],
            [0.3000, 0.7000]]), tensor([False,  True]))
    """
    unsure = short.amax(dim=-1) < threshold
    return torch.where(unsure[:, None], long, short), unsure
