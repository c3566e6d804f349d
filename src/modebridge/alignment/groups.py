"""Groups of units that are permuted together, and how they permute every weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from modebridge.alignment.axes import Axis, factors
from modebridge.alignment.passes import Point
from modebridge.types import Params

Permutations: TypeAlias = Mapping[int, Tensor]
"""By group: the index of the other network's unit at each position; (outer size, size) for a group inside another."""


@dataclass(frozen=True)
class Group:
    """Units that can be permuted, named after the first weight that has them.

    `outer` is the group whose units each contain this one (heads, for the channels of a head); None for most.
    """

    number: int
    name: str
    size: int
    outer: int | None = None


@dataclass(frozen=True)
class Dim:
    """A dimension of a weight: a group, or fixed (`group` None), or made of parts like `Axis`."""

    size: int
    group: int | None = None
    form: str = "whole"
    parts: tuple[Dim, ...] = ()


class Place(NamedTuple):
    """The indices (units, m) of a group along one dimension of a weight; its units are those of `Groups.count`."""

    weight: str
    dim: int
    rows: Tensor


@dataclass(frozen=True)
class Groups:
    """The symmetry of a network.

    Args:
        groups: groups by number, in the order of the forward pass.
        weights: dimensions of every parameter and buffer.
        points: dimensions of the tensors of a forward pass where units can be observed.
        stopped: what kept units in place (operations, unused weights, outputs other than the logits), and where.
        training: whether some weights are used only in training, and were traced there.
    """

    groups: dict[int, Group]
    weights: dict[str, tuple[Dim, ...]]
    points: dict[Point, tuple[Dim, ...]] = field(default_factory=dict)
    stopped: tuple[tuple[str, str], ...] = ()
    training: bool = False

    def permute(self, state: Params, permutations: Permutations) -> dict[str, Tensor]:
        """The weights with permuted units."""
        return {name: self.permuted(name, tensor, permutations) for name, tensor in state.items()}

    def permuted(self, name: str, tensor: Tensor, permutations: Permutations) -> Tensor:
        """One weight with permuted units."""
        for k, dim in enumerate(self.weights.get(name, ())):
            index = self._index(dim, permutations)
            if index is not None:
                tensor = tensor.index_select(k, index.to(tensor.device))
        return tensor

    def identity(self) -> dict[int, Tensor]:
        """The identity permutation of every group."""
        alike = {number: torch.arange(group.size) for number, group in self.groups.items()}
        outers = {number: group.outer for number, group in self.groups.items() if group.outer is not None}
        return alike | {number: alike[number].repeat(self.groups[outer].size, 1) for number, outer in outers.items()}

    def roots(self) -> list[int]:
        """The groups that are not inside another; each is matched together with those inside it."""
        return [number for number, group in self.groups.items() if group.outer is None]

    def count(self, group: Group) -> int:
        """The number of units of a group, over all units of its outer group if it has one."""
        return group.size if group.outer is None else self.groups[group.outer].size * group.size

    def flat(self, number: int, permutations: Permutations) -> Tensor:
        """The permutation of a group as one vector, over all units of its outer group if it has one."""
        group, permutation = self.groups[number], permutations[number]
        if group.outer is None:
            return permutation
        return (permutations[group.outer][:, None] * group.size + permutation).reshape(-1)

    def shaped(self, group: Group, table: Tensor) -> Tensor:
        """Similarities of all units of a group, whose outer group if any is a dimension of its own."""
        if group.outer is None:
            return table
        outer = self.groups[group.outer].size
        return table.reshape(outer, group.size, outer, group.size)

    def inner(self, number: int) -> list[Group]:
        """The groups inside each unit of a group."""
        return [group for group in self.groups.values() if group.outer == number]

    def _index(self, dim: Dim, permutations: Permutations) -> Tensor | None:
        """The source index of each position of the new dimension; None if nothing moves."""
        if not any(leaf.group in permutations for leaf in leaves(dim)):
            return None
        source = torch.empty(dim.size, dtype=torch.long)
        for parts, indices in blocks(dim):
            grids = torch.meshgrid(*[torch.arange(part.size) for part in parts], indexing="ij")
            place_of = {part.group: k for k, part in enumerate(parts)}
            chosen = []
            for part, grid in zip(parts, grids, strict=True):
                if part.group is None or part.group not in permutations:
                    chosen.append(grid)
                elif (outer := self.groups[part.group].outer) is None:
                    chosen.append(permutations[part.group][grid])
                else:
                    chosen.append(permutations[part.group][grids[place_of[outer]], grid])
            source[indices] = indices.reshape(grids[0].shape)[tuple(chosen)].reshape(-1)
        return source


def groups_of(
    axes: Mapping[str, Sequence[Axis]],
    points: Mapping[Point, Sequence[Axis]],
    stopped: Sequence[tuple[str, str]],
    training: bool,
) -> Groups:
    """The free axes of weights as groups, numbered in the order of the weights."""
    free: dict[int, tuple[str, Axis]] = {}
    for name, labels in axes.items():
        for leaf in (leaf for axis in labels for leaf in leaves_of(axis)):
            if not leaf.pinned and leaf.size > 1:
                free.setdefault(id(leaf), (name, leaf))
    number_of = {key: k for k, key in enumerate(free)}
    outer_of = _outers([axis for labels in axes.values() for axis in labels], number_of)
    groups = {
        number_of[key]: Group(number_of[key], name, leaf.size, outer_of.get(number_of[key]))
        for key, (name, leaf) in free.items()
    }
    weights = {name: tuple(_dim(axis, number_of) for axis in labels) for name, labels in axes.items()}
    seen = {point: tuple(_dim(axis, number_of) for axis in labels) for point, labels in points.items()}
    return Groups(groups, weights, seen, tuple(stopped), training)


def places(groups: Groups, number: int) -> list[Place]:
    """Every dimension of every weight that has a group."""
    group = groups.groups[number]
    return [
        Place(name, k, rows.reshape(groups.count(group), -1))
        for name, dims in groups.weights.items()
        for k, dim in enumerate(dims)
        for rows in _rows(dim, number, group.outer)
    ]


def _rows(dim: Dim, number: int, outer: int | None) -> Iterator[Tensor]:
    """The indices along a dimension with the group (after its outer group) moved to the front."""
    for parts, indices in blocks(dim):
        for k, part in enumerate(parts):
            if part.group == number:
                outers = [j for j, other in enumerate(parts) if other.group == outer] if outer is not None else []
                rest = [j for j in range(len(parts)) if j != k and j not in outers]
                grid = indices.reshape([other.size for other in parts])
                yield grid.permute([*outers, k, *rest]).reshape(-1)


def blocks(dim: Dim) -> Iterator[tuple[tuple[Dim, ...], Tensor]]:
    """A dimension as blocks, each a product of parts without parts, with its indices in their order.

    Sums and products may be nested to any depth, as concatenations of concatenations are.

    >>> pair = Dim(3, None, "sum", (Dim(1, 0), Dim(2, 1)))
    >>> [(len(parts), indices.tolist()) for parts, indices in blocks(Dim(6, None, "product", (pair, Dim(2))))]
    [(2, [0, 1]), (2, [2, 3, 4, 5])]
    """
    if dim.form == "whole":
        yield (dim,), torch.arange(dim.size)
    elif dim.form == "sum":
        offset = 0
        for part in dim.parts:
            yield from ((parts, indices + offset) for parts, indices in blocks(part))
            offset += part.size
    else:
        for chosen in product(*[list(blocks(part)) for part in dim.parts]):
            total = torch.zeros(1, dtype=torch.long)
            for part, (_, indices) in zip(dim.parts, chosen, strict=True):
                total = (total[:, None] * part.size + indices).reshape(-1)
            yield tuple(leaf for parts, _ in chosen for leaf in parts), total


def _outers(axes: Iterable[Axis], number_of: Mapping[int, int]) -> dict[int, int]:
    """Groups that always follow the same other group on a dimension: each unit of that one has its own numbering.

    If an operation works along the outer group at every position of the inner one, its units share a numbering.
    """
    before: dict[int, set[int | None]] = {}
    across: set[tuple[int | None, int | None]] = set()
    for axis in axes:
        for run in _runs(axis):
            for earlier, leaf in zip([None, *run], run, strict=False):
                number = number_of.get(id(leaf))
                if number is not None:
                    before.setdefault(number, set()).add(None if earlier is None else number_of.get(id(earlier)))
                    across |= {
                        (number, number_of.get(id(other))) for crossed in leaf.across for other in factors(crossed)
                    }
    nested = {number: next(iter(outers)) for number, outers in before.items() if len(outers) == 1}
    inside = {number: outer for number, outer in nested.items() if outer is not None and (outer, number) not in across}
    # One level only: groups inside a nested group are numbered alike everywhere.
    return {number: outer for number, outer in inside.items() if outer not in inside}


def _runs(axis: Axis) -> Iterator[list[Axis]]:
    axis = axis.root
    if axis.form == "sum":
        for part in axis.parts:
            yield from _runs(part)
    else:
        run = factors(axis)
        for leaf in run:
            if leaf.form == "sum":
                yield from _runs(leaf)
        yield run


def leaves_of(axis: Axis) -> Iterator[Axis]:
    """The parts of an axis that have no parts themselves."""
    axis = axis.root
    if axis.form == "whole":
        yield axis
    else:
        for part in axis.parts:
            yield from leaves_of(part)


def leaves(dim: Dim) -> Iterator[Dim]:
    """The parts of a dimension that have no parts themselves."""
    if dim.form == "whole":
        yield dim
    else:
        for part in dim.parts:
            yield from leaves(part)


def _dim(axis: Axis, number_of: Mapping[int, int]) -> Dim:
    axis = axis.root
    if axis.form == "whole":
        return Dim(axis.size, number_of.get(id(axis)))
    if axis.form == "sum":
        return Dim(axis.size, None, "sum", tuple(_dim(part, number_of) for part in axis.parts))
    return Dim(axis.size, None, "product", tuple(_dim(part, number_of) for part in factors(axis)))
