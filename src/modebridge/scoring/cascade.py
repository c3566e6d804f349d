"""Cascades: confident images use only the first member; all others run on the remaining images."""

from __future__ import annotations

from torch import Tensor

from modebridge.ensembles import cascaded
from modebridge.errors import ModebridgeError

__all__ = ["ALL", "cascaded", "choose_threshold"]

ALL = 2.0
"""A threshold above any confidence: every image uses all members."""


def choose_threshold(confidences: Tensor, base_cost: float, extra_cost: float, average_cost: float) -> float:
    """The highest threshold whose average cost on these images is at most the given cost.

    The least confident images use all members. Images of equal confidence are treated alike, so the cost may be
    slightly below the limit.

    Args:
        confidences: top probabilities (N,) of the first base on validation images, after its own temperature.
        base_cost: cost of the first base, for every image.
        extra_cost: cost of all other members, for an image that uses them.
        average_cost: maximum average cost per image.

    >>> import torch
    >>> choose_threshold(torch.tensor([0.5, 0.6, 0.7, 0.9]), 1.0, 0.2, 1.1)
    0.699999988079071
    """
    if confidences.dim() != 1 or not len(confidences):
        raise ModebridgeError(
            f"Expected confidences to be (N,) with N at least 1, but got {tuple(confidences.shape)}; "
            "pass those of the validation images."
        )
    if not average_cost >= base_cost > 0 or not extra_cost >= 0:
        raise ModebridgeError(
            f"Expected an average cost of at least the base's {base_cost:g}, but got {average_cost:g}; raise it."
        )
    if base_cost + extra_cost <= average_cost:
        return ALL
    ordered = confidences.double().sort().values
    # An image uses all members if its confidence is below the threshold: at ordered[n] the n lowest do.
    most = int((average_cost - base_cost) / extra_cost * len(ordered) + 1e-9)
    # If only rounding separates the cost from that of all images, all images use all members.
    return float(ordered[most]) if most < len(ordered) else ALL
