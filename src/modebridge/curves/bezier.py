"""Bezier curves of any degree over parameter trees."""

from __future__ import annotations

import math
from dataclasses import dataclass

from modebridge import trees
from modebridge.curves.curve import Curve, Position
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode

__all__ = ["BezierCurve", "bernstein"]


def bernstein(degree: int, r: Position) -> list[Position]:
    """The Bernstein polynomials of degree n at r: C(n, k) r^k (1 - r)^(n - k) for k = 0 ... n.

    >>> bernstein(2, 0.5)
    [0.25, 0.5, 0.25]
    """
    return [math.comb(degree, k) * r**k * (1 - r) ** (degree - k) for k in range(degree + 1)]


@dataclass(frozen=True, eq=False, repr=False)
class BezierCurve(Curve):
    r"""The paper's curve, with one pin: :math:`(1-r)^2 \theta_i + 2r(1-r)\,\theta_{pin} + r^2 \theta_j`.

    With p pins it has degree p + 1; without pins it is a straight line.

    >>> import torch
    >>> w = lambda x: Mode({"w": torch.tensor([x])}, {})
    >>> BezierCurve(w(0.0), w(4.0), ({"w": torch.tensor([6.0])},)).point(0.5)
    {'w': tensor([4.])}
    """

    def weights(self, r: Position) -> list[Position]:
        """The Bernstein polynomials at r."""
        return bernstein(len(self.pins) + 1, r)

    @classmethod
    def line(cls, start: Mode, end: Mode, pins: int = 1) -> BezierCurve:
        """The straight segment, with pins spaced evenly on it (a single pin is the midpoint)."""
        if pins < 0:
            raise ModebridgeError(f"Expected pins to be at least 0, but got {pins}; 1 gives the paper's curve.")
        straight = cls(start, end, ())
        return straight.with_pins([trees.clone(straight.settled(k / (pins + 1))) for k in range(1, pins + 1)])
