"""Step 2: curves between two modes, functions of r in [0, 1] on parameter trees."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor, nn

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, Saved, check_modes, check_statistics, has_statistics, refresh_statistics
from modebridge.nets import fresh_weights
from modebridge.types import Batches, Params

Position: TypeAlias = float | Tensor
"""r: a Python number, or a scalar tensor to differentiate by."""

PinStart: TypeAlias = Literal["midpoint", "random"]

SHARED = "shared"


def check_r(r: Position) -> None:
    """Raise an error if r is NaN or outside [0, 1]; tensors are not checked, as that would synchronize a GPU."""
    if isinstance(r, Tensor):
        return
    if not isinstance(r, int | float) or not 0.0 <= r <= 1.0:
        raise ModebridgeError(f"Expected r to be in [0, 1], but got {r}; 0 is the start, 0.5 the midpoint, 1 the end.")


def bernstein(degree: int, r: Position) -> list[Position]:
    """The Bernstein polynomials of degree n at r: C(n, k) r^k (1 - r)^(n - k) for k = 0 ... n.

    >>> bernstein(2, 0.5)
    [0.25, 0.5, 0.25]
    """
    return [math.comb(degree, k) * r**k * (1 - r) ** (degree - k) for k in range(degree + 1)]


@dataclass(frozen=True, eq=False, repr=False)
class Curve(Saved):
    r"""A Bezier curve between two modes; with one pin it is the paper's, and the ends are never changed.

    .. math:: \theta(r) = (1-r)^2 \theta_i + 2r(1-r)\,\theta_{pin} + r^2 \theta_j

    With p pins it has degree p + 1; without pins it is a straight line.

    Args:
        start: the mode at r = 0.
        end: the mode at r = 1.
        pins: the control points between them, in order.
        statistics: running statistics by r, for networks with batch norm; see `with_statistics`.

    >>> w = lambda x: Mode({"w": torch.tensor([x])}, {})
    >>> Curve(w(0.0), w(4.0), ({"w": torch.tensor([6.0])},)).point(0.5)
    {'w': tensor([4.])}
    """

    start: Mode
    end: Mode
    pins: tuple[Params, ...]
    statistics: Mapping[float, Params] = field(default_factory=dict)

    @classmethod
    def line(cls, start: Mode, end: Mode, pins: int = 1) -> Self:
        """The straight segment, with pins spaced evenly on it (a single pin is the midpoint)."""
        straight = cls(start, end, ())
        return straight.with_pins([trees.clone(straight.settled(k / (pins + 1))) for k in range(1, pins + 1)])

    def __repr__(self) -> str:
        # Statistics are part of the curve: a network with batch norm cannot run at an r without them.
        known = f", statistics at r = {', '.join(f'{r:g}' for r in sorted(self.statistics))}" if self.statistics else ""
        pins = f"{len(self.pins)} pin{'' if len(self.pins) == 1 else 's'}"
        return f"{type(self).__name__}({pins} between modes of {trees.size(self.start.params):,} parameters{known})"

    def __post_init__(self) -> None:
        trees.check_same([self.start.params, self.end.params], "the two modes of a curve")
        trees.check_same([self.start.params, *self.pins], "the pins of a curve")

    def weights(self, r: Position) -> list[Position]:
        """The weights of start, pins and end at r; they sum to 1."""
        return bernstein(len(self.pins) + 1, r)

    @property
    def controls(self) -> list[Params]:
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
        """The same curve with other pins; old statistics are dropped."""
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

    def packed(self, learns: Container[str]) -> dict[str, Tensor]:
        """All control points as one tree to train, the names with prefixes: "start", the numbers of the pins, "end".

        A parameter that is not learned and that all control points share is stored once, as "shared", and never
        averaged: rounding would make it depend on r.
        """
        pairs = zip(self._keys, self.controls, strict=True)
        every = {f"{key}:{name}": tensor for key, tree in pairs for name, tensor in tree.items()}
        for name, tensor in trees.common(self.controls).items():
            if name not in learns:
                for key in self._keys:
                    del every[f"{key}:{name}"]
                every[f"{SHARED}:{name}"] = tensor
        return every

    def pin_names(self, learns: Iterable[str]) -> set[str]:
        """The names of the learned parameters of the pins in `packed`."""
        return {f"{key}:{name}" for key in self._keys[1:-1] for name in learns}

    def unpacked(self, packed: Params) -> tuple[list[Params], Params]:
        """Start, pins and end from `packed`, and the tensors that all of them share."""
        parts: dict[str, dict[str, Tensor]] = {key: {} for key in (*self._keys, SHARED)}
        for full_name, tensor in packed.items():
            key, name = full_name.split(":", 1)
            parts[key][name] = tensor
        return [parts[key] for key in self._keys], parts[SHARED]

    @property
    def _keys(self) -> list[str]:
        return ["start", *(str(k) for k in range(len(self.pins))), "end"]

    def with_statistics(self, net: nn.Module, r: float, batches: Batches) -> Self:
        """The same curve with batch norm's statistics re-estimated at r on training images.

        It is unchanged for other networks, and at the ends, which keep their own statistics.
        """
        check_r(r)
        check_statistics(net, self.start.buffers, self.end.buffers)
        if r in (0.0, 1.0) or r in self.statistics or not has_statistics(net):
            return self
        fresh = refresh_statistics(net, self.settled(r), self.start.buffers, batches)
        return replace(self, statistics={**self.statistics, r: fresh})

    def at(self, r: float) -> Mode:
        """The network on the curve at r as a mode: its parameters and statistics."""
        check_r(r)
        if r == 0.0:
            return self.start
        if r == 1.0:
            return self.end
        if r in self.statistics:
            return Mode(self.settled(r), self.statistics[r], self.start.extra)
        # Layers that estimate statistics count batches; frozen ones, whose statistics are constants, do not.
        stale = [name for name in self.start.buffers if name.endswith("num_batches_tracked")]
        if stale:
            raise ModebridgeError(
                f"Expected batch norm's statistics to be known at r = {r}, but got none for '{stale[0]}'; "
                "call curve = curve.with_statistics(net, r, train) first."
            )
        return replace(self.start, params=self.settled(r))


def start_curve(
    net: nn.Module, start: Mode, end: Mode, *, pins: int = 1, pin_start: PinStart = "midpoint", seed: int = 0
) -> Curve:
    """A curve before training.

    Args:
        net: the network of both modes.
        start: the mode at r = 0.
        end: the mode at r = 1.
        pins: number of control points to train.
        pin_start: "midpoint" puts the pins on the straight segment; "random" draws new values (`fresh_weights`) for the
            trained parameters (`requires_grad`), as the authors do.
        seed: seed of the new weights.
    """
    check_modes(net, [start, end], 2, "a curve")
    check_statistics(net, start.buffers, end.buffers)
    if start.id == end.id:
        raise ModebridgeError(
            "Expected the two modes of a curve to differ, but got the same weights twice; "
            "use two independently trained networks."
        )
    if pins < 1:
        raise ModebridgeError(f"Expected pins to be at least 1, but got {pins}; 1 gives the paper's quadratic curve.")
    line = Curve.line(start, end, pins)
    if pin_start == "midpoint":
        return line
    if pin_start != "random":
        raise ModebridgeError(
            f"Expected pin_start to be 'midpoint' or 'random', but got '{pin_start}'; choose one of the two."
        )
    learns = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    new_pins = []
    for k, pin in enumerate(line.pins):
        fresh = fresh_weights(net, seed + k)
        new_pins.append({name: fresh[name] if name in learns else tensor for name, tensor in pin.items()})
    return line.with_pins(new_pins)
