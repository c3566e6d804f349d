"""Match units by their activations: correlations on the same images, then one assignment per group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from modebridge.alignment.groups import Group, Groups
from modebridge.alignment.passes import Contraction, Point, contractions
from modebridge.alignment.units import points_of, units_of
from modebridge.batches import take_rows
from modebridge.errors import ModebridgeError
from modebridge.types import Batches, Inputs

FAINT = 1e-6
"""A unit whose relative standard deviation is at most this counts as constant: the variation is rounding."""

TIE = 1e-4
"""Weight of correlations before the activation function, just enough to break ties."""

CHUNK = 64
"""Maximum number of images per forward pass."""

MEMORY = 2**30
"""Maximum bytes of one network's activations that are held for comparison with the other's."""


@torch.no_grad()
def activation_similarity(
    groups: Groups, a: nn.Module, b: nn.Module, data: Batches, images: int, progress: Callable[[int], object]
) -> Correlations:
    """Correlations of all units of `a` with all of `b`, averaged over the points where a group is observed.

    Units are observed where they enter a weight (after norm and activation function, as in the paper), or, if they
    never do, such as queries and keys, where they leave one. A point that an image reaches in only one of the networks
    (an expert) cannot be compared and is left out. `progress` is called with the number of images of every batch.
    """
    correlations = Correlations(groups)
    seen, chunk = 0, 0
    for inputs, labels in data:
        count = min(len(labels), images - seen)
        if count > 0 and not chunk:
            each = correlations.size(a, take_rows(inputs, torch.tensor([0, 0]))) // 2
            chunk = max(2, min(CHUNK, MEMORY // max(each, 1)))
        for start in range(0, count, chunk or 1):
            end = min(start + chunk, count)
            # Repeat a single image: torch uses other code paths for a batch of one.
            rows = torch.arange(start, end) if end > start + 1 else torch.tensor([start, start])
            correlations.add(a, b, take_rows(inputs, rows))
        seen += max(count, 0)
        progress(max(count, 0))
        if seen >= images:
            break
    if seen == 0:
        raise ModebridgeError("Expected data to match activations on, but got no image; pass the training data.")
    return correlations


class Correlations:
    """Correlations of every unit of one network with every unit of another, from forward passes; a `Similarity`."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._points = {number: points_of(groups, number) for number in groups.groups}
        self._sums = {(n, point): _Sums() for n, sides in self._points.items() for side in sides for point in side}
        self._groups_at: dict[Point, list[int]] = {}
        for number, point in self._sums:
            self._groups_at.setdefault(point, []).append(number)

    def __call__(self, group: Group) -> Tensor | None:
        """The similarity by which units are matched."""
        into, out_of = self._sums_of(group.number)
        if not into and not out_of:
            return None
        total = _mean(into or out_of)
        if into and out_of:
            # Units that are constant or identical after the activation function are distinguished before it.
            total = total + TIE * _mean(out_of)
        return self._groups.shaped(group, total)

    def plain(self, group: Group) -> Tensor | None:
        """The quality of a match: the mean correlation over the points where at least one of two units varies."""
        into, out_of = self._sums_of(group.number)
        if not into and not out_of:
            return None
        found = [sums.correlation() for sums in into or out_of]
        varying = torch.stack([table.masked_fill(constant, math.nan) for table, constant in found])
        return self._groups.shaped(group, varying.nanmean(dim=0))

    @property
    def stopped(self) -> list[tuple[str, str]]:
        """Why groups that were observed but could not be compared stay in place, and where each starts."""
        reasons = {group.name: self._lost(number) for number, group in self._groups.groups.items()}
        return [(reason, name.rpartition(".")[0] or name) for name, reason in reasons.items() if reason is not None]

    def size(self, net: nn.Module, inputs: Inputs) -> int:
        """Bytes of the activations of a pass."""
        held = self._activations(net, inputs)
        return sum(units.numel() * units.element_size() for units in held.values() if units is not None)

    def add(self, a: nn.Module, b: nn.Module, inputs: Inputs) -> None:
        """Add the activations of both networks on the same images."""
        held = self._activations(a, inputs)

        def compare(key: tuple[int, Point], theirs: Tensor | None) -> None:
            mine = held.pop(key, None)
            if mine is None or theirs is None or mine.shape != theirs.shape:
                # Not the same images as in the other network: units cannot be compared here.
                self._sums.pop(key, None)
            elif key in self._sums:
                self._sums[key].add(mine, theirs)

        contractions(b, inputs, partial(self._see, compare))
        for key in held:
            self._sums.pop(key, None)

    def _sums_of(self, number: int) -> tuple[list[_Sums], list[_Sums]]:
        """The sums of a group at the inputs of weights and at their outputs."""
        into, out_of = (
            [sums for point in side if (sums := self._sums.get((number, point))) is not None and not sums.empty]
            for side in self._points[number]
        )
        return into, out_of

    def _lost(self, number: int) -> str | None:
        """Why a group cannot be compared anywhere; None if it can."""
        points = [point for side in self._points[number] for point in side]
        if not points or any(self._sums_of(number)):
            return None
        if all((number, point) in self._sums for point in points):
            return "weights that no image reached"
        return "images that the two networks route differently"

    def _activations(self, net: nn.Module, inputs: Inputs) -> dict[tuple[int, Point], Tensor | None]:
        held: dict[tuple[int, Point], Tensor | None] = {}
        contractions(net, inputs, partial(self._see, held.__setitem__))
        return held

    def _see(
        self,
        take: Callable[[tuple[int, Point], Tensor | None], None],
        contraction: Contraction,
        side: int,
        operand: Tensor,
        result: Tensor,
    ) -> None:
        for point, tensor in (((contraction, side), operand), ((contraction, None), result)):
            for number in self._groups_at.get(point, ()):
                if (number, point) in self._sums:
                    take((number, point), units_of(self._groups, number, tensor, self._groups.points[point]))


def _mean(sums: Sequence[_Sums]) -> Tensor:
    return torch.stack([given.correlation()[0] for given in sums]).mean(dim=0)


class _Sums:
    """Running sums for a correlation."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._shifts: tuple[Tensor, Tensor] | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return not self._parts

    def add(self, a: Tensor, b: Tensor) -> None:
        """Add activations with units in rows and samples in columns, the same samples for both."""
        if self._shifts is None:
            # Subtracted throughout: sums of squares with a mean far from zero would lose digits.
            self._shifts = a.mean(1, keepdim=True), b.mean(1, keepdim=True)
        a, b = a - self._shifts[0], b - self._shifts[1]
        count = torch.tensor(float(a.shape[1]), device=a.device)
        new = [count, a.sum(1), b.sum(1), a.square().sum(1), b.square().sum(1), a @ b.T]
        old = self._parts or [torch.zeros_like(part, dtype=torch.float64) for part in new]
        self._parts = [x + y.double() for x, y in zip(old, new, strict=True)]

    def correlation(self) -> tuple[Tensor, Tensor]:
        """The mean product of standardised activations, 0 for constant units; and where both units are constant."""
        n, a, b, aa, bb, ab = self._parts
        assert self._shifts is not None
        deviations, constants = [], []
        for total, squares, shift in ((a, aa, self._shifts[0]), (b, bb, self._shifts[1])):
            deviation = (squares / n - (total / n).square()).clamp_min(0).sqrt()
            size = ((total / n + shift.double().squeeze(1)).square() + deviation.square()).sqrt()
            constants.append(deviation <= FAINT * size)
            # Dividing by infinity gives 0, whatever rounding error the covariance has.
            deviations.append(deviation.masked_fill(constants[-1], math.inf))
        covariance = ab / n - (a / n)[:, None] * (b / n)[None, :]
        both = constants[0][:, None] & constants[1][None, :]
        return covariance / deviations[0][:, None] / deviations[1][None, :], both
