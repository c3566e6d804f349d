"""Match units of two networks: by the correlations of their activations, or by the products of their weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from modebridge.alignment.groups import Groups, Permutations, Place, Point, Reason
from modebridge.alignment.proof import one_pass
from modebridge.alignment.trace import Watch
from modebridge.batches import take_rows
from modebridge.errors import ModebridgeError
from modebridge.trees import wide
from modebridge.types import Batches, Inputs, Params

SWEEPS = 50
"""Maximum number of sweeps over all groups."""

FAINT = 1e-6
"""A unit whose relative standard deviation is at most this counts as constant: the variation is rounding."""

TIE = 1e-4
"""Weight of correlations before the activation function, just enough to break ties."""

CHUNK = 64
"""Maximum number of images per forward pass."""

MEMORY = 2**30
"""Maximum bytes of activations of the two networks that are held for comparison."""

Key: TypeAlias = tuple[int, Point]


def assign(similarity: Tensor) -> Tensor:
    """The one-to-one assignment with the largest sum of similarities (Hungarian).

    >>> assign(torch.tensor([[0.1, 0.9], [0.8, 0.2]]))
    tensor([1, 0])
    """
    # Imported here: it takes half a second, and most programs do not need it.
    from scipy.optimize import linear_sum_assignment

    _, columns = linear_sum_assignment(similarity.double().cpu().numpy(), maximize=True)
    return torch.from_numpy(np.asarray(columns))


def match_by_weights(groups: Groups, a: Params, b: Params) -> dict[int, Tensor]:
    """The permutations that bring the weights of `b` closest to those of `a`.

    The first sweep uses only weights whose other groups are already matched, starting at the inputs, whose order is
    known. Later sweeps use all weights, until nothing changes.
    """
    permutations = groups.identity()
    for sweep in range(1 + SWEEPS):
        before = dict(permutations)
        for number in range(len(groups.groups)):
            matched = number if sweep == 0 else len(groups.groups)
            permutations[number] = assign(_products(groups, number, a, b, permutations, matched))
        if sweep and all(torch.equal(permutations[number], before[number]) for number in permutations):
            break
    return permutations


def cosines(groups: Groups, a: Params, b: Params) -> dict[int, float]:
    """The mean cosine between the weights of units at the same index, by group."""
    means = {}
    for number in range(len(groups.groups)):
        products, mine, theirs = (
            _products(groups, number, x, y, {}, len(groups.groups)).double().diagonal()
            for x, y in ((a, b), (a, a), (b, b))
        )
        # A unit whose weights are 0 has cosine 0; two of them cannot be compared.
        cosine = products / (mine.sqrt() * theirs.sqrt()).clamp_min(1e-30)
        means[number] = float(cosine.masked_fill((mine == 0) & (theirs == 0), math.nan).nanmean())
    return means


def _products(groups: Groups, number: int, a: Params, b: Params, current: Permutations, matched: int) -> Tensor:
    """Inner products of the units' weights, with the other groups of `b` at their current permutations.

    If there are any, only weights whose other groups are among the first `matched` ones.
    """
    others = {other: permutation for other, permutation in current.items() if other != number}
    numbers = {name: {place.group for place in places} for name, places in groups.weights.items() if name in a}
    having = [name for name in numbers if number in numbers[name]]
    having = [name for name in having if max(numbers[name]) <= max(matched, number)] or having
    size = groups.groups[number].size
    total = torch.zeros(size, size, device=next((b[name].device for name in having), None))
    for name in having:
        permuted = groups.permuted(name, b[name], others)
        for place in groups.weights[name]:
            if place.group == number:
                total = total + _weights_of(a[name], place) @ _weights_of(permuted, place).T
    return total


def _weights_of(tensor: Tensor, place: Place) -> Tensor:
    """One row per unit with all of its weights."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    return real.float().movedim(place.dim, 0)[place.rows.to(real.device)].reshape(len(place.rows), -1)


def correlations(
    groups: Groups, a: nn.Module, b: nn.Module, data: Batches, images: int, progress: Callable[[int], object]
) -> Correlations:
    """Correlations of all units of `a` with all of `b`; `progress` is called with the number of images per batch."""
    found = Correlations(groups)
    seen, chunk = 0, 0
    for inputs, labels in data:
        count = max(0, min(len(labels), images - seen))
        if count and not chunk:
            # Two images of one network take as much as one of both.
            pair = found.activations(a, take_rows(inputs, torch.tensor([0, 0]))).values()
            each = sum(units.nbytes for units in pair)
            chunk = max(2, min(CHUNK, MEMORY // max(each, 1)))
        for start in range(0, count, chunk or 1):
            end = min(start + chunk, count)
            # Repeat a single image: torch uses other code paths for a batch of one.
            rows = torch.arange(start, end) if end > start + 1 else torch.tensor([start, start])
            found.add(a, b, take_rows(inputs, rows))
        seen += count
        progress(count)
        if seen >= images:
            break
    if seen == 0:
        raise ModebridgeError("Expected data to match activations on, but got no image; pass the training data.")
    return found


class Correlations:
    """Correlations of all units of two networks, over the points where each group is observed.

    Units are observed where they enter a weight (after norm and activation function, as in the paper), or, if they
    never do, where they leave one. A point that the images reach in only one of the networks (an expert) cannot be
    compared and is left out.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._places = {point: _by_group(places) for point, places in groups.points.items()}
        self._sums: dict[Key, _Sums] = {}
        self._apart: set[Key] = set()

    @torch.no_grad()
    def add(self, a: nn.Module, b: nn.Module, inputs: Inputs) -> None:
        """Add the activations of both networks on the same images."""
        mine, theirs = self.activations(a, inputs), self.activations(b, inputs)
        # Elsewhere they are not those of the same images.
        both = {key for key in mine.keys() & theirs.keys() if mine[key].shape == theirs[key].shape}
        self._apart |= (mine.keys() | theirs.keys()) - both
        for key in both:
            self._sums.setdefault(key, _Sums()).add(mine[key], theirs[key])

    def activations(self, net: nn.Module, inputs: Inputs) -> dict[Key, Tensor]:
        """The activations of a pass by group and point: units in rows, samples in columns."""
        found: dict[Key, Tensor] = {}

        def see(point: Point, tensor: Tensor) -> None:
            found.update({(number, point): _units(tensor, own) for number, own in self._places.get(point, {}).items()})

        with Watch(net, see):
            one_pass(net, inputs)
        return found

    def similarity(self) -> dict[int, Tensor]:
        """The similarities by which units are matched, for every group that can be compared."""
        tables = {}
        for number in range(len(self._groups.groups)):
            into, out_of = self._sums_of(number)
            if into or out_of:
                tables[number] = _mean(into or out_of)
            if into and out_of:
                # Units that are constant or identical after the activation function are distinguished before it.
                tables[number] = tables[number] + TIE * _mean(out_of)
        return tables

    def quality(self, permutations: Permutations) -> dict[int, float]:
        """The mean correlation of matched units, by group, over the points where at least one of the two varies."""
        means = {}
        for number in range(len(self._groups.groups)):
            into, out_of = self._sums_of(number)
            found = [sums.correlation() for sums in into or out_of]
            if found:
                table = torch.stack([r.masked_fill(still, math.nan) for r, still in found]).nanmean(dim=0).cpu()
                means[number] = float(table[torch.arange(len(table)), permutations[number]].nanmean())
        return means

    @property
    def stopped(self) -> list[Reason]:
        """Groups that stay in place because there is no point where the networks can be compared."""
        lost = {number for number, _ in self._apart if not any(self._sums_of(number))}
        names = [group.name for number, group in enumerate(self._groups.groups) if number in lost]
        return [("images that the two networks route differently", name.rpartition(".")[0] or name) for name in names]

    def _sums_of(self, number: int) -> tuple[list[_Sums], list[_Sums]]:
        """The sums of a group at the inputs of weights and at their outputs."""
        keys = [(number, point) for point in self._groups.points]
        into, out_of = (
            [self._sums[key] for key in keys if key in self._sums and key not in self._apart and key[1][2] is entering]
            for entering in (True, False)
        )
        return into, out_of


def _by_group(places: Sequence[Place]) -> dict[int, list[Place]]:
    """The groups of a tensor; none if two dimensions have units, whose order differs between networks."""
    if len({place.dim for place in places}) != 1:
        return {}
    return {number: [place for place in places if place.group == number] for number in {p.group for p in places}}


def _units(tensor: Tensor, places: Sequence[Place]) -> Tensor:
    """Units in rows, samples in columns; if a group has several blocks on a dimension, they are concatenated."""
    dim = places[0].dim
    if tensor.dim() == 4 and dim == 1 and min(tensor.shape[2:]) > 32:
        # Every second pixel of maps over 32 pixels wide, every fourth of those over 128, as the authors do.
        step = 4 if min(tensor.shape[2:]) > 128 else 2
        tensor = tensor[:, :, ::step, ::step]
    moved = (torch.view_as_real(tensor) if tensor.is_complex() else wide(tensor)).movedim(dim, 0)
    blocks = [moved.narrow(0, int(rows[0, 0]), rows.numel()).reshape(len(rows), -1) for _, _, rows in places]
    return torch.cat(blocks, dim=1)


def _mean(sums: Sequence[_Sums]) -> Tensor:
    return torch.stack([given.correlation()[0] for given in sums]).mean(dim=0)


class _Sums:
    """Running sums for a correlation."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._shifts: tuple[Tensor, Tensor] | None = None

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
        """The mean product of standardized activations, 0 for constant units; and where both units are constant."""
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
