"""The base class of curves: functions of r in [0, 1] on parameter trees, between two modes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Self

import torch
from torch import Tensor, nn

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, Refresh, check_statistics, has_statistics, refresh_statistics
from modebridge.types import Batches, Params

__all__ = ["Curve", "Position", "check_r"]

Position = float | Tensor
"""r: a Python number, or a scalar tensor to differentiate by."""


def check_r(r: Position) -> None:
    """Raise an error if r is NaN or outside [0, 1]; tensors are not checked, as that would synchronise a GPU."""
    if isinstance(r, Tensor):
        return
    if not isinstance(r, int | float) or not 0.0 <= r <= 1.0:
        raise ModebridgeError(f"Expected r to be in [0, 1], but got {r}; 0 is the start, 0.5 the midpoint, 1 the end.")


@dataclass(frozen=True, eq=False, repr=False)
class Curve(ABC):
    """A path between two modes, shaped by pins; the ends are never changed.

    Args:
        start: the mode at r = 0.
        end: the mode at r = 1.
        pins: the control points between them, in order.
        statistics: running statistics by r, for networks with batch norm; see `with_statistics`.

    A subclass implements `weights`, the weights of start, pins and end at r.
    """

    start: Mode
    end: Mode
    pins: tuple[Params, ...]
    statistics: Mapping[float, Params] = field(default_factory=dict)

    def __repr__(self) -> str:
        # Statistics are part of the curve: a network with batch norm cannot run at an r without them.
        known = f", statistics at r = {', '.join(f'{r:g}' for r in sorted(self.statistics))}" if self.statistics else ""
        pins = f"{len(self.pins)} pin{'' if len(self.pins) == 1 else 's'}"
        return f"{type(self).__name__}({pins} between modes of {trees.size(self.start.params):,} parameters{known})"

    def __post_init__(self) -> None:
        trees.check_same([self.start.params, self.end.params], "the two modes of a curve")
        trees.check_same([self.start.params, *self.pins], "the pins of a curve")

    @abstractmethod
    def weights(self, r: Position) -> list[Position]:
        """The weights of start, pins and end at r; they sum to 1."""

    @property
    def controls(self) -> list[Params]:
        """Start, pins and end."""
        return [self.start.params, *self.pins, self.end.params]

    def point(self, r: Position) -> dict[str, Tensor]:
        """The parameters at r; bitwise equal to the ends at 0 and 1."""
        check_r(r)
        return trees.combine(self.weights(r), self.controls)

    def settled(self, r: float) -> dict[str, Tensor]:
        """The parameters at r, with those that the whole curve shares (frozen layers) bitwise equal at every r.

        This compares values, which the differentiable `point` does not.
        """
        return {**self.point(r), **trees.common(self.controls)}

    def with_pins(self, pins: Sequence[Params]) -> Self:
        """The same kind of curve with other pins; old statistics are dropped."""
        return replace(self, pins=tuple(pins), statistics={})

    def to(self, device: torch.device | str) -> Self:
        """The same curve on another device."""
        return replace(
            self,
            start=self.start.to(device),
            end=self.end.to(device),
            pins=tuple(trees.to(pin, device) for pin in self.pins),
            statistics={r: trees.to(buffers, device) for r, buffers in self.statistics.items()},
        )

    def with_statistics(
        self, net: nn.Module, r: float, batches: Batches, *, refresh: Refresh = refresh_statistics
    ) -> Self:
        """The same curve with batch norm's statistics re-estimated at r (unchanged for other networks).

        The ends keep their own statistics, so the curve is also unchanged for r = 0 and r = 1.

        Args:
            net: the network of the modes.
            r: position on the curve.
            batches: the training images.
            refresh: function that re-estimates the statistics; distributed training passes its own.
        """
        check_r(r)
        check_statistics(net, self.start.buffers, self.end.buffers)
        if r in (0.0, 1.0) or r in self.statistics or not has_statistics(net):
            return self
        fresh = refresh(net, self.settled(r), self.start.buffers, batches)
        return replace(self, statistics={**self.statistics, r: fresh})

    def at(self, r: float) -> Mode:
        """The network on the curve at r as a mode: its parameters and statistics."""
        check_r(r)
        if r == 0.0:
            return self.start
        if r == 1.0:
            return self.end
        if r in self.statistics:
            return Mode(self.settled(r), self.statistics[r])
        # Layers that estimate statistics count batches; frozen ones, whose statistics are constants, do not.
        stale = [name for name in self.start.buffers if name.endswith("num_batches_tracked")]
        if stale:
            raise ModebridgeError(
                f"Expected batch norm's statistics to be known at r = {r}, but got none for '{stale[0]}'; "
                "call curve = curve.with_statistics(net, r, train) first."
            )
        return Mode(self.settled(r), self.start.buffers)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the curve as a folder that `modebridge.load` reads; see `modebridge.files.save`."""
        from modebridge.files import save

        save(self, path)
