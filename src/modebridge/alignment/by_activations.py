"""Match units by what they say: correlations of activations on the same images, then one assignment a group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter

import torch
from torch import Tensor, nn

from modebridge.alignment.groups import Dim, Group, Groups, leaves
from modebridge.alignment.matching import Similarity
from modebridge.alignment.trace import contractions
from modebridge.batches import check_batch, each
from modebridge.errors import ModebridgeError
from modebridge.types import Batches

__all__ = ["activation_similarity"]

EPSILON = 1e-5
"""Added to every deviation, as the authors do."""

TIE = 1e-4
"""The weight of correlations before the activation function: enough to decide between equals, no more."""

CHUNK = 64
"""Images that go through both networks at once: their activations are all held."""


@torch.no_grad()
def activation_similarity(
    groups: Groups, a: nn.Module, b: nn.Module, data: Batches, images: int = 10_000
) -> Similarity:
    """Correlations of all units of `a` with all of `b`, summed over the places where a group is seen.

    Units are seen where they enter a weight (after norm and activation function, as in the paper); those that never do,
    such as queries and keys, where they come out of one.

    Args:
        groups: the symmetry, traced.
        a: the reference, in evaluation mode.
        b: the network to match to it.
        data: images; labels are not used.
        images: at most so many are looked at.
    """
    watched = {n: (*_points(groups, n, into=True), *_points(groups, n, into=False)) for n in groups.groups}
    sums = {(number, point): _Sums() for number, points in watched.items() for point in points}
    seen = 0
    for item in data:
        batch = check_batch(item, "data")
        count = min(len(batch[1]), images - seen)
        for begin in range(0, count, CHUNK):
            end = min(begin + CHUNK, count)
            # A single image twice: torch takes other ways with one than with several.
            rows = list(range(begin, end)) if end > begin + 1 else [begin, begin]
            part = each(itemgetter(rows), batch[0])
            said = [_Said(groups, watched), _Said(groups, watched)]
            for net, listener in zip((a, b), said, strict=True):
                contractions(net, part, listener)
            for key, total in sums.items():
                total.add(said[0].found[key], said[1].found[key])
        seen += max(count, 0)
        if seen >= images:
            break
    if seen == 0:
        raise ModebridgeError("Expected data to match activations on, but got no image; give the training data.")

    def correlations(group: Group) -> Tensor | None:
        into = [sums[group.number, point] for point in _points(groups, group.number, into=True)]
        out_of = [sums[group.number, point] for point in _points(groups, group.number, into=False)]
        if not into and not out_of:
            return None
        total = _mean(into or out_of)
        if into and out_of:
            # Units that never speak, or once and together, are told apart by what comes out of their weights.
            total = total + TIE * _mean(out_of)
        if group.outer is None:
            return total
        outer = groups.groups[group.outer].size
        return total.reshape(outer, group.size, outer, group.size)

    return correlations


def _mean(sums: Sequence[_Sums]) -> Tensor:
    return torch.stack([given.correlation() for given in sums]).mean(dim=0)


class _Sums:
    """Running sums, from which a correlation follows at the end."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._middles: tuple[Tensor, Tensor] | None = None

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
        n, a, b, aa, bb, ab = self._parts
        mine, theirs = (
            (squares / n - (total / n).square()).clamp_min(0).sqrt() for total, squares in ((a, aa), (b, bb))
        )
        covariance = ab / n - (a / n)[:, None] * (b / n)[None, :]
        return covariance / (mine + EPSILON)[:, None] / (theirs + EPSILON)[None, :]


class _Said:
    """Takes the activations of every watched group out of one forward pass."""

    def __init__(self, groups: Groups, watched: Mapping[int, Sequence[int]]) -> None:
        self._groups = groups
        self._wanted: dict[int, list[tuple[int, int]]] = {}
        for number, points in watched.items():
            for point in points:
                self._wanted.setdefault(groups.points[point][0], []).append((number, point))
        self.found: dict[tuple[int, int], Tensor] = {}

    def __call__(self, contraction: int, operands: Sequence[Tensor], result: Tensor) -> None:
        for number, point in self._wanted.get(contraction, ()):
            _, side, dims = self._groups.points[point]
            tensor = result if side is None else operands[side]
            if tensor.dim() != len(dims):
                raise ModebridgeError(
                    f"Expected every batch to take the same way through the network, but one has "
                    f"{tuple(tensor.shape)} where the first had {len(dims)} dimensions; use by='weights'."
                )
            self.found[number, point] = _units(self._groups, number, tensor, dims)


def _points(groups: Groups, number: int, *, into: bool) -> list[int]:
    """Where a group is seen on the way into weights, or out of them."""
    outer = groups.groups[number].outer
    inside = {inner.number for inner in groups.inner(number)}
    found = []
    for k, (_, side, dims) in enumerate(groups.points):
        if (side is not None) != into:
            continue
        having = [dim for dim in dims if number in _on(dim)]
        parts = [part for dim in having for part in _pieces(dim) if number in _on(part)]
        once = len(having) == 1 and all(_on(part).count(number) == 1 for part in parts)
        elsewhere = [group for dim in dims if dim not in having for group in _on(dim)]
        nested = outer is None or all(outer in (*_on(part), *elsewhere) for part in parts)
        # Groups inside the units of this one are seen by themselves.
        if once and nested and not inside & {*elsewhere, *(group for dim in having for group in _on(dim))}:
            found.append(k)
    return found


def _on(dim: Dim) -> list[int]:
    return [leaf.group for leaf in leaves(dim) if leaf.group is not None]


def _pieces(dim: Dim) -> tuple[Dim, ...]:
    return dim.parts if dim.kind == "sum" else (dim,)


def _units(groups: Groups, number: int, tensor: Tensor, dims: Sequence[Dim]) -> Tensor:
    """Units in rows, samples in columns; where a group lies in several pieces of a dimension, one after another."""
    place = next(k for k, dim in enumerate(dims) if number in _on(dim))
    found, position = [], 0
    for piece in _pieces(dims[place]):
        if number in _on(piece):
            part = tensor.narrow(place, position, piece.size)
            found.append(_rows(groups, number, part, [*dims[:place], piece, *dims[place + 1 :]]))
        position += piece.size
    return torch.cat(found, dim=1)


def _rows(groups: Groups, number: int, tensor: Tensor, dims: Sequence[Dim]) -> Tensor:
    """Units in rows, samples in columns; other groups, whose order differs, are averaged out."""
    tensor = tensor if any(_on(dim) for dim in dims[2:]) else _thinned(tensor)
    flat: list[Dim] = []
    sizes: list[int] = []
    # Only dimensions with groups are cut, by the sizes of those: batches and lengths may differ from the traced ones.
    for dim, size in zip(dims, tensor.shape, strict=True):
        parts = dim.parts if dim.kind == "product" and _on(dim) else (dim,)
        fixed = math.prod(part.size for part in parts if _on(part))
        rest = [k for k, part in enumerate(parts) if not _on(part)]
        cut = [part.size for part in parts]
        if rest:
            cut[rest[0]] = size // fixed // math.prod(parts[k].size for k in rest[1:])
        flat.extend(parts)
        sizes.extend(cut)
    grid = tensor.reshape(sizes)
    outer = groups.groups[number].outer
    own = next(k for k, part in enumerate(flat) if part.group == number)
    front = [own]
    if outer is not None:
        front = [next(k for k, part in enumerate(flat) if part.group == outer), own]
    others = [k for k, part in enumerate(flat) if _on(part) and k not in front]
    if others:
        grid = grid.mean(dim=others, keepdim=True)
    rest = [k for k in range(grid.dim()) if k not in front]
    units = math.prod(grid.shape[k] for k in front)
    return grid.permute([*front, *rest]).reshape(units, -1)


def _thinned(tensor: Tensor) -> Tensor:
    """Every second place of maps over 32 pixels, every fourth of those over 128, as the authors do."""
    if tensor.dim() != 4 or min(tensor.shape[2:]) <= 32:
        return tensor
    step = 4 if min(tensor.shape[2:]) > 128 else 2
    return tensor[:, :, ::step, ::step]
