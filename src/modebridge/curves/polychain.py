"""Chains of straight segments over parameter trees."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from modebridge import trees
from modebridge.curves.curve import Curve, Position

__all__ = ["Polychain"]


@dataclass(frozen=True, eq=False, repr=False)
class Polychain(Curve):
    """Straight from the start through each pin to the end, each segment taking the same share of r.

    At a pin the tangent is that of the segment that begins there.
    """

    def weights(self, r: Position) -> list[Position]:
        """Two neighbours share the weight: 1 - s and s, s the position within the segment."""
        if isinstance(r, Tensor):
            # The same without a branch on r, so that it can be compiled and captured in a graph.
            number = (r.detach() * self._segments).floor().clamp(max=self._segments - 1)
            position, zero = r * self._segments - number, torch.zeros_like(r)
            return [
                torch.where(number == k, 1 - position, torch.where(number == k - 1, position, zero))
                for k in range(self._segments + 1)
            ]
        segment, s = self._locate(r)
        weights: list[Position] = [0.0] * (self._segments + 1)
        weights[segment], weights[segment + 1] = 1 - s, s
        return weights

    def slopes(self, r: Position) -> list[Position]:
        """Constant on a segment: minus and plus the number of segments."""
        segment, _ = self._locate(r)
        slopes: list[Position] = [0.0] * (self._segments + 1)
        slopes[segment], slopes[segment + 1] = -float(self._segments), float(self._segments)
        return slopes

    @property
    def _segments(self) -> int:
        return len(self.pins) + 1

    def _locate(self, r: Position) -> tuple[int, Position]:
        plain = float(r)
        segment = min(int(plain * self._segments), self._segments - 1)
        return segment, r * self._segments - segment

    def elevated(self) -> Polychain:
        """The same path with its pins doubled: each segment cut in half, so segments stay of equal share."""
        controls = self.controls
        pins = []
        for k in range(self._segments):
            pins.append(trees.combine([0.5, 0.5], [controls[k], controls[k + 1]]))
            if k + 1 < self._segments:
                pins.append(dict(controls[k + 1]))
        return replace(self, pins=tuple(pins))
