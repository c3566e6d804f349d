"""How sure is sure enough: what each threshold of an elastic file buys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.ensembles import Mean, average, scale
from modebridge.evaluate.cascade import ALL, cascaded, choose_threshold
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


def gated(
    members: Tensor, bases: int, temperatures: Temperatures, threshold: float, mean: Mean = "probability"
) -> tuple[Tensor, Tensor]:
    """The answers (N, K) behind a threshold, and which images (N,) took the long way.

    Args:
        members: (M, N, K) probabilities, bases first.
        bases: how many of them are bases.
        temperatures: see `fit_temperatures`.
        threshold: see `TradeOff`.
        mean: how members become one.
    """
    short = scale(members[0], temperatures.first)
    long = scale(average(members, mean), temperatures.of_members(len(members) - bases))
    return cascaded(short, long, threshold)


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
