"""Cost and quality of an elastic file at each confidence threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.ensembles import Mean, average, scale
from modebridge.scoring.cascade import ALL, cascaded, choose_threshold
from modebridge.scoring.scores import accuracy, check, nll

__all__ = ["TradeOff", "choose_threshold", "gated", "trade_off"]


@dataclass(frozen=True)
class TradeOff:
    """Cost and quality at one threshold.

    Args:
        threshold: images whose first base is at least this confident use only that base.
        share: share of images that run all members.
        cost: average cost, in the unit of the given costs.
        accuracy: share of correct predictions.
        nll: NLL of the predictions; the first base and the full ensemble have their own temperatures.
    """

    threshold: float
    share: float
    cost: float
    accuracy: float
    nll: float


def gated(
    members: Tensor, bases: int, temperatures: Temperatures, threshold: float, mean: Mean = "probability"
) -> tuple[Tensor, Tensor]:
    """The probabilities (N, K) at a threshold, and which images (N,) run all members.

    Args:
        members: (M, N, K) probabilities, bases first.
        bases: number of bases among the members.
        temperatures: see `fit_temperatures`.
        threshold: see `TradeOff`.
        mean: how members are averaged.
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
    """Average cost, accuracy and NLL, one point per threshold, by increasing cost.

    Args:
        members: (M, N, K) probabilities on images other than those used to fit the temperatures, bases first.
        labels: (N,).
        bases: number of bases among the members.
        temperatures: temperatures fitted on validation data.
        base_cost: cost of the first base, for every image.
        extra_cost: cost of all other members, for an image that runs them.
        thresholds: None for those at which 0, 5, ..., 100 % of these images run all members.
    """
    check(members[0], labels)
    top = scale(members[0], temperatures.first).amax(dim=-1).double().sort().values
    if thresholds is None:
        places = [round(k / 20 * len(top)) for k in range(20)]
        thresholds = [*sorted({float(top[min(place, len(top) - 1)]) for place in places}), ALL]
    points = []
    for threshold in thresholds:
        probabilities, unsure = gated(members, bases, temperatures, threshold)
        share = float(unsure.double().mean())
        cost = base_cost + share * extra_cost
        points.append(TradeOff(threshold, share, cost, accuracy(probabilities, labels), nll(probabilities, labels)))
    return points
