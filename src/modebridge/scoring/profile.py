"""Scores of the networks along a curve, and a check whether it is low-loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from modebridge.curves import Curve, check_r
from modebridge.ensembles import probabilities_of
from modebridge.errors import ModebridgeError
from modebridge.modes import has_statistics
from modebridge.nets import frozen_copy, run
from modebridge.scoring.evaluate import predict
from modebridge.scoring.scores import accuracy, nll
from modebridge.types import Batches

TOLERANCE = 0.015
"""How much lower than that of its ends the accuracy of a curve may be."""


@dataclass(frozen=True)
class CurvePoint:
    """NLL (without temperature) and accuracy of the network on a curve at r."""

    r: float
    nll: float
    accuracy: float


def curve_profile(
    net: nn.Module,
    curve: Curve,
    data: Batches,
    positions: int | Sequence[float] = 11,
    train: Batches | None = None,
) -> list[CurvePoint]:
    """The scores of the networks along a curve.

    Args:
        net: the network of the curve's modes.
        curve: the curve.
        data: data to score on, once per position.
        positions: number of evenly spaced positions including both ends, or the positions themselves.
        train: batches to re-estimate batch norm's statistics on, for networks that have any.
    """
    if isinstance(positions, int):
        if positions < 2:
            raise ModebridgeError(
                f"Expected positions to be at least 2, the two ends, but got {positions}; 11 is the default."
            )
        positions = [k / (positions - 1) for k in range(positions)]
    rs = [float(r) for r in positions]
    if not rs:
        raise ModebridgeError("Expected positions to have at least one r, but got none; pass some in [0, 1].")
    for r in rs:
        check_r(r)
    unknown = [r for r in rs if r not in (0.0, 1.0) and r not in curve.statistics]
    if train is None and unknown and has_statistics(net):
        raise ModebridgeError(
            f"Expected train for a network with batch norm, but got None, and its statistics at "
            f"r = {unknown[0]:g} are unknown; pass the training data."
        )
    bare = frozen_copy(net)

    def scored(r: float) -> CurvePoint:
        mode = (curve if train is None else curve.with_statistics(net, r, train)).at(r)
        table, labels = predict(lambda images: probabilities_of(run(bare, mode.params, mode.buffers, images)), data)
        return CurvePoint(r, nll(table, labels), accuracy(table, labels))

    return [scored(r) for r in rs]


def barrier(profile: Sequence[CurvePoint]) -> float:
    """The largest rise of the NLL above the straight line between its values at the two ends; at least 0.

    >>> barrier([CurvePoint(0.0, 1.0, 0.9), CurvePoint(0.5, 1.75, 0.8), CurvePoint(1.0, 1.5, 0.9)])
    0.5
    """
    if len(profile) < 2:
        raise ModebridgeError(
            f"Expected a profile to have at least the two ends, but got {len(profile)} points; use curve_profile."
        )
    points = sorted(profile, key=lambda point: point.r)
    first, last = points[0], points[-1]
    if first.r == last.r:
        raise ModebridgeError(
            f"Expected a profile to have two different r, but got only r = {first.r:g}; use curve_profile."
        )
    shares = [(point.r - first.r) / (last.r - first.r) for point in points]
    return max(
        point.nll - ((1 - share) * first.nll + share * last.nll) for point, share in zip(points, shares, strict=True)
    )


def check_curve(midpoint_accuracy: float, ends_accuracy: float, samples: int) -> str:
    """A warning if a curve is not low-loss at its midpoint, by validation accuracies: it is a poor bridge target then.

    It is not if its accuracy is below the ends' mean by more than 1.5 points, and by more than two standard errors of a
    proportion: a small validation split cannot resolve less.

    >>> check_curve(0.90, 0.92, samples=100)
    ''
    """
    allowed = max(TOLERANCE, 2 * math.sqrt(ends_accuracy * (1 - ends_accuracy) / samples))
    gap = ends_accuracy - midpoint_accuracy
    if gap <= allowed:
        return ""
    return (
        f"The curve is not low-loss: at r = 0.5 its validation accuracy is {midpoint_accuracy:.1%}, {100 * gap:.1f} "
        f"points below the mean of its ends, {ends_accuracy:.1%} (up to {100 * allowed:.1f} points below are allowed "
        f"with {samples} images); train it longer, since a bridge is no better than its target."
    )
