"""Match units by what they say: correlations of activations on the same images, then one assignment a group."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor, nn

from modebridge.alignment.groups import Group, Groups
from modebridge.alignment.passes import Contraction, contractions
from modebridge.alignment.units import points_of, units_of
from modebridge.batches import each
from modebridge.errors import ModebridgeError
from modebridge.types import Batches, Inputs, Progress

__all__ = ["Correlations", "activation_similarity"]

FAINT = 1e-6
"""A unit that changes by less, relative to its own size, does not change: that much is rounding."""

TIE = 1e-4
"""The weight of correlations before the activation function: enough to decide between equals, no more."""

CHUNK = 64
"""Images that go through both networks at once, at most."""

MEMORY = 2**30
"""Bytes of one network's activations that are held until the other network's arrive."""


@torch.no_grad()
def activation_similarity(
    groups: Groups, a: nn.Module, b: nn.Module, data: Batches, images: int = 10_000, progress: Progress | None = None
) -> Correlations:
    """Correlations of all units of `a` with all of `b`, summed over the places where a group is seen.

    Units are seen where they enter a weight (after norm and activation function, as in the paper); those that never do,
    such as queries and keys, where they come out of one. A place that an image reaches in one network and not in the
    other (an expert) says nothing and is left out.

    Args:
        groups: the symmetry, traced.
        a: the reference, in evaluation mode.
        b: the network to match to it.
        data: checked batches where the networks are; labels are not used.
        images: at most so many are looked at.
        progress: told of every batch.
    """
    listener = _Listener(groups)
    seen, chunk, begun = 0, 0, time.perf_counter()
    for inputs, labels in data:
        count = min(len(labels), images - seen)
        if count > 0 and not chunk:
            chunk = max(2, min(CHUNK, MEMORY // max(listener.size(a, _rows_of(inputs, [0, 0])) // 2, 1)))
        for begin in range(0, count, chunk or 1):
            end = min(begin + chunk, count)
            # A single image twice: torch takes other ways with one than with several.
            listener.listen(a, b, _rows_of(inputs, list(range(begin, end)) if end > begin + 1 else [begin, begin]))
        seen += max(count, 0)
        if progress is not None:
            progress("activations", seen, max(images, seen), seen / max(time.perf_counter() - begun, 1e-9))
        if seen >= images:
            break
    if seen == 0:
        raise ModebridgeError("Expected data to match activations on, but got no image; give the training data.")
    return Correlations(groups, listener)


class Correlations:
    """Of every unit of one network to every unit of another; a `Similarity`."""

    def __init__(self, groups: Groups, listener: _Listener) -> None:
        self._groups = groups
        self._listener = listener

    def __call__(self, group: Group) -> Tensor | None:
        """What units are matched by."""
        into, out_of = self._listener.sums(group.number)
        if not into and not out_of:
            return None
        total = _mean(into or out_of)
        if into and out_of:
            # Units that never speak, or once and together, are told apart by what comes out of their weights.
            total = total + TIE * _mean(out_of)
        return self._shaped(group, total)

    def plain(self, group: Group) -> Tensor | None:
        """What a match is judged by: the mean correlation over the places where at least one of two units changes."""
        into, out_of = self._listener.sums(group.number)
        if not into and not out_of:
            return None
        parts = []
        for sums in into or out_of:
            table, (mine, theirs) = sums.correlation(), sums.silent()
            parts.append(table.masked_fill(mine[:, None] & theirs[None, :], math.nan))
        return self._shaped(group, torch.stack(parts).nanmean(dim=0))

    @property
    def stopped(self) -> list[tuple[str, str]]:
        """Why groups stay in place that could be seen but not compared, and where each begins."""
        reasons = {group.name: self._listener.lost(number) for number, group in self._groups.groups.items()}
        return [(why, name.rpartition(".")[0] or name) for name, why in reasons.items() if why is not None]

    def _shaped(self, group: Group, table: Tensor) -> Tensor:
        if group.outer is None:
            return table
        outer = self._groups.groups[group.outer].size
        return table.reshape(outer, group.size, outer, group.size)


def _mean(sums: Sequence[_Sums]) -> Tensor:
    return torch.stack([given.correlation() for given in sums]).mean(dim=0)


def _rows_of(inputs: Inputs, rows: list[int]) -> Inputs:
    return each(itemgetter(rows), inputs)


class _Sums:
    """Running sums, from which a correlation follows at the end."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._middles: tuple[Tensor, Tensor] | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return not self._parts

    def add(self, a: Tensor, b: Tensor) -> None:
        """Units in rows, samples in columns, the same ones for both."""
        if self._middles is None:
            # Subtracted throughout: sums of squares around a mean far from zero would lose their digits.
            self._middles = a.mean(1, keepdim=True), b.mean(1, keepdim=True)
        a, b = a - self._middles[0], b - self._middles[1]
        count = torch.tensor(float(a.shape[1]), device=a.device)
        new = [count, a.sum(1), b.sum(1), a.square().sum(1), b.square().sum(1), a @ b.T]
        old = self._parts or [torch.zeros_like(part, dtype=torch.float64) for part in new]
        self._parts = [x + y.double() for x, y in zip(old, new, strict=True)]

    def correlation(self) -> Tensor:
        """The mean product of standardised activations; a unit that never changes is like no other."""
        n, a, b, _, _, ab = self._parts
        # Divided by infinity: 0, whatever rounding left of the covariance.
        mine, theirs = (
            deviation.masked_fill(silent, math.inf)
            for deviation, silent in zip(self._deviations(), self.silent(), strict=True)
        )
        covariance = ab / n - (a / n)[:, None] * (b / n)[None, :]
        return covariance / mine[:, None] / theirs[None, :]

    def silent(self) -> tuple[Tensor, Tensor]:
        """The units of each network that never change, judged by their own size and not by an absolute one."""
        n, a, b, _, _, _ = self._parts
        assert self._middles is not None
        mine, theirs = (
            deviation <= FAINT * ((total / n + middle.double().squeeze(1)).square() + deviation.square()).sqrt()
            for deviation, total, middle in zip(self._deviations(), (a, b), self._middles, strict=True)
        )
        return mine, theirs

    def _deviations(self) -> tuple[Tensor, Tensor]:
        n, a, b, aa, bb, _ = self._parts
        mine, theirs = (
            (squares / n - (total / n).square()).clamp_min(0).sqrt() for total, squares in ((a, aa), (b, bb))
        )
        return mine, theirs


class _Listener:
    """Takes the activations of every group out of the passes of two networks."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._points = {
            number: (points_of(groups, number, into=True), points_of(groups, number, into=False))
            for number in groups.groups
        }
        self._sums = {(n, point): _Sums() for n, sides in self._points.items() for side in sides for point in side}
        self._wanted: dict[tuple[Contraction, int | None], list[tuple[int, int]]] = {}
        for number, point in self._sums:
            contraction, side, _ = groups.points[point]
            self._wanted.setdefault((contraction, side), []).append((number, point))

    def sums(self, number: int) -> tuple[list[_Sums], list[_Sums]]:
        """Of a group, on the way into weights and out of them."""
        into, out_of = (
            [
                sums
                for sums in (self._sums.get((number, point)) for point in side)
                if sums is not None and not sums.empty
            ]
            for side in self._points[number]
        )
        return into, out_of

    def lost(self, number: int) -> str | None:
        """Why a group cannot be compared anywhere, in words."""
        points = [point for side in self._points[number] for point in side]
        if not points or any(self.sums(number)):
            return None
        if all((number, point) in self._sums for point in points):
            return "weights that no image reached"
        return "images that the two networks route differently"

    def size(self, net: nn.Module, inputs: Inputs) -> int:
        """How many bytes of activations a pass leaves to hold."""
        held = self._heard(net, inputs)
        return sum(units.numel() * units.element_size() for units in held.values() if units is not None)

    def listen(self, a: nn.Module, b: nn.Module, inputs: Inputs) -> None:
        """Add the activations of both networks on the same images."""
        held = self._heard(a, inputs)

        def compare(key: tuple[int, int], theirs: Tensor | None) -> None:
            mine = held.pop(key, None)
            if mine is None or theirs is None or mine.shape != theirs.shape:
                # Other images than in the other network: no place to compare units at.
                self._sums.pop(key, None)
            elif key in self._sums:
                self._sums[key].add(mine, theirs)

        contractions(b, inputs, partial(self._see, compare))
        for key in held:
            self._sums.pop(key, None)

    def _heard(self, net: nn.Module, inputs: Inputs) -> dict[tuple[int, int], Tensor | None]:
        held: dict[tuple[int, int], Tensor | None] = {}
        contractions(net, inputs, partial(self._see, held.__setitem__))
        return held

    def _see(
        self,
        take: Callable[[tuple[int, int], Tensor | None], None],
        contraction: Contraction,
        side: int,
        operand: Tensor,
        result: Tensor,
    ) -> None:
        for where, tensor in ((side, operand), (None, result)):
            for number, point in self._wanted.get((contraction, where), ()):
                if (number, point) in self._sums:
                    take((number, point), units_of(self._groups, number, tensor, self._groups.points[point][2]))
