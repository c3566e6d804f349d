"""Scores of the networks along a curve, and a check whether it is low-loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from modebridge.curves import Curve, check_r
from modebridge.ensembles import probabilities_of
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, has_statistics
from modebridge.nets import frozen_copy, run
from modebridge.scoring.evaluate import predict
from modebridge.scoring.scores import accuracy, nll
from modebridge.types import Batches


@dataclass(frozen=True)
class CurvePoint:
    """NLL (without temperature) and accuracy of the network on a curve at r."""

    r: float
    nll: float
    accuracy: float


@dataclass(frozen=True)
class CurveCheck:
    """Whether a curve is a good bridge target.

    Args:
        low_loss: the verdict, see `check_curve`.
        sentence: the verdict as text, with numbers and advice.
    """

    low_loss: bool
    sentence: str


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
    points = []
    for r in rs:
        mode = (curve if train is None else curve.with_statistics(net, r, train)).at(r)
        table, labels = predict(partial(_predicted, bare, mode), data)
        points.append(CurvePoint(r, nll(table, labels), accuracy(table, labels)))
    return points


def _predicted(net: nn.Module, mode: Mode, images: Tensor) -> Tensor:
    return probabilities_of(run(net, mode.params, mode.buffers, images))


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


def check_curve(
    midpoint_accuracy: float, ends_accuracy: float, samples: int, r: float = 0.5, tolerance: float = 0.015
) -> CurveCheck:
    """Check whether a curve is low-loss at r, from validation accuracies; if not, it is a poor bridge target.

    It is not if its accuracy is below the ends' mean by more than the tolerance, and by more than two
    standard errors of a proportion: a small validation split cannot resolve less.

    >>> check_curve(0.90, 0.92, samples=100).low_loss, check_curve(0.90, 0.92, samples=10_000).low_loss
    (True, False)
    """
    if samples < 1 or not tolerance >= 0:
        raise ModebridgeError(
            f"Expected at least 1 sample and a tolerance of at least 0, but got {samples} and {tolerance}; "
            "pass validation data, and 0.015 for the default."
        )
    allowed = max(tolerance, 2 * math.sqrt(ends_accuracy * (1 - ends_accuracy) / samples))
    gap = ends_accuracy - midpoint_accuracy
    figures = (
        f"at r = {r:g} its validation accuracy is {midpoint_accuracy:.1%}, {abs(gap) * 100:.1f} points "
        f"{'below' if gap > 0 else 'above'} the mean of its ends, {ends_accuracy:.1%} "
        f"(up to {100 * allowed:.1f} points below are allowed with {samples} images)"
    )
    sentence = (
        f"The curve is low-loss: {figures}."
        if gap <= allowed
        else f"The curve is not low-loss: {figures}; train it longer, since a bridge is no better than its target."
    )
    return CurveCheck(gap <= allowed, sentence)
