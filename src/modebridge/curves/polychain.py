"""Chains of straight segments over parameter trees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from modebridge.curves.curve import Curve, Position

__all__ = ["Polychain"]


@dataclass(frozen=True, eq=False, repr=False)
class Polychain(Curve):
    """Straight segments from the start through each pin to the end; each takes the same share of r."""

    def weights(self, r: Position) -> list[Position]:
        """Two neighbours have weights 1 - s and s, where s is the position within the segment."""
        segments = len(self.pins) + 1
        if isinstance(r, Tensor):
            # The same without branching on r, so that it can be compiled and captured in a graph.
            number = (r.detach() * segments).floor().clamp(max=segments - 1)
            position, zero = r * segments - number, torch.zeros_like(r)
            return [
                torch.where(number == k, 1 - position, torch.where(number == k - 1, position, zero))
                for k in range(segments + 1)
            ]
        segment = min(int(r * segments), segments - 1)
        s = r * segments - segment
        weights: list[Position] = [0.0] * (segments + 1)
        weights[segment], weights[segment + 1] = 1 - s, s
        return weights
