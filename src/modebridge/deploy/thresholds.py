"""How sure is sure enough: the threshold for an average cost, and what each threshold buys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.deploy.elastic_answer import ALL
from modebridge.ensembles import mean_probability, scale
from modebridge.errors import ModebridgeError
from modebridge.evaluate.scores import accuracy, check, nll

__all__ = ["TradeOff", "choose_threshold", "gated", "trade_off"]


@dataclass(frozen=True)
class TradeOff:
    """One threshold and what it buys.

    Args:
        threshold: images whose first base is at least this confident get its answer alone.
        share: of the images, how many take the long way.
        cost: the average, in the unit of the costs given.
        accuracy: share of right answers.
        nll: of the answers, which are calibrated each in its own way.
    """

    threshold: float
    share: float
    cost: float
    accuracy: float
    nll: float


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
    return float(ordered[most])


def gated(members: Tensor, bases: int, temperatures: Temperatures, threshold: float) -> tuple[Tensor, Tensor]:
    """The answers (N, K) behind a threshold, and which images (N,) took the long way.

    Args:
        members: (M, N, K) probabilities, bases first.
        bases: how many of them are bases.
        temperatures: see `fit_temperatures`.
        threshold: see `TradeOff`.
    """
    short = scale(members[0], temperatures.first)
    long = scale(mean_probability(members), temperatures.by_bridges[len(members) - bases])
    unsure = short.amax(dim=-1) < threshold
    return torch.where(unsure[:, None], long, short), unsure


def trade_off(
    members: Tensor,
    labels: Tensor,
    bases: int,
    temperatures: Temperatures,
    base_cost: float,
    extra_cost: float,
    *,
    thresholds: Sequence[float] | None = None,
) -> list[TradeOff]:
    """Average cost against accuracy and NLL, a point a threshold, by rising cost.

    Args:
        members: (M, N, K) probabilities on images that the temperatures were not fitted on, bases first.
        labels: (N,).
        bases: how many of the members are bases.
        temperatures: fitted on validation data.
        base_cost: of the first base, for every image.
        extra_cost: of all the rest, for an image that takes the long way.
        thresholds: None takes those that send 0, 5, ..., 100 % of these images the long way.
    """
    check(members[0], labels)
    top = scale(members[0], temperatures.first).amax(dim=-1).double().sort().values
    if thresholds is None:
        places = [round(k / 20 * len(top)) for k in range(20)]
        thresholds = [*sorted({float(top[min(place, len(top) - 1)]) for place in places}), ALL]
    points = []
    for threshold in thresholds:
        answers, unsure = gated(members, bases, temperatures, threshold)
        share = float(unsure.double().mean())
        cost = base_cost + share * extra_cost
        points.append(TradeOff(threshold, share, cost, accuracy(answers, labels), nll(answers, labels)))
    return points
