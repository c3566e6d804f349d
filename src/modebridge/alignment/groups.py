"""Units as symbols, and groups of units that are permuted together.

Every dimension of every tensor in a forward pass is an `Axis`: consecutive blocks of units. A concatenation has several
blocks; in a flattened map every unit spans several positions. Operations make axes equal (the channels of a convolution
and of the norm after it) by substituting units for units, or pin them (classes and pixels have a fixed order). Units
that are in the end neither pinned nor substituted are a group: they can be permuted without changing the function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError, near
from modebridge.types import Params

Reason: TypeAlias = tuple[str, str]
"""Why units keep their order: what happened, and in which module."""

NATURAL: Reason = ("", "")
"""The reason of axes that never were units: images, pixels, classes."""


@dataclass(eq=False)
class Units:
    """Units that are permuted together, unless they are `pinned`, or are made of other units (`parts`)."""

    size: int
    pinned: Reason | None = None
    parts: Axis | None = None


class Block(NamedTuple):
    """Consecutive positions of an axis: `span` for each of its units."""

    units: Units
    span: int = 1

    @property
    def size(self) -> int:
        return self.units.size * self.span


Axis: TypeAlias = tuple[Block, ...]
Axes: TypeAlias = tuple[Axis, ...]


def free(size: int) -> Axis:
    """An axis whose order does not matter."""
    return (Block(Units(size)),)


def fixed(shape: Iterable[int], why: Reason = NATURAL) -> Axes:
    """Pinned axes for a tensor of this shape."""
    return tuple((Block(Units(size, why)),) for size in shape)


def length(axis: Axis) -> int:
    return sum(block.size for block in axis)


def resolve(axis: Axis) -> Axis:
    """The blocks of an axis in terms of units that are not made of others."""
    blocks: list[Block] = []
    for units, span in axis:
        if units.parts is None:
            blocks.append(Block(units, span))
        else:
            units.parts = resolve(units.parts)
            blocks.extend(Block(part, inner * span) for part, inner in units.parts)
    return tuple(blocks)


def pin(axis: Axis, why: Reason) -> None:
    """Fix every position of an axis."""
    for units, _ in resolve(axis):
        units.pinned = units.pinned or why


def unify(first: Axis, second: Axis, why: Reason) -> None:
    """Make two axes the same; where their blocks cannot be matched, pin both."""
    if length(first) != length(second):
        raise ValueError("axes of different sizes cannot be the same")
    while cuts := _ends(first) ^ _ends(second):
        if not all(_cut(axis, place) for place in cuts for axis in (first, second)):
            pin(first, why)
            pin(second, why)
            return
    for one, other in zip(resolve(first), resolve(second), strict=True):
        # Resolved again: the blocks before may have substituted the same units.
        ((a, m),), ((b, n),) = resolve((one,)), resolve((other,))
        if a is b:
            continue
        if a.pinned or b.pinned or (m % n and n % m):
            a.pinned = b.pinned = a.pinned or b.pinned or why
        elif m % n == 0:
            b.parts = (Block(a, m // n),)
        else:
            a.parts = (Block(b, n // m),)


def take(axis: Axis, start: int, stop: int, why: Reason) -> Axis:
    """The axis of a slice. Units inside and outside of it are no longer permuted into each other."""
    if not (_cut(axis, start) and _cut(axis, stop)):
        pin(axis, why)
        return fixed([stop - start], why)[0]
    ends = accumulate(block.size for block in resolve(axis))
    return tuple(block for block, end in zip(resolve(axis), ends, strict=True) if start < end <= stop)


def merge(axes: Sequence[Axis], why: Reason) -> Axis:
    """The axis to which a reshape merges several, the first changing slowest: its units span the others."""
    real = [axis for axis in axes if length(axis) != 1]
    if not real:
        return free(1)
    for axis in real[1:]:
        pin(axis, why)
    inner = math.prod(length(axis) for axis in real[1:])
    return tuple(Block(units, span * inner) for units, span in resolve(real[0]))


def split(axis: Axis, sizes: Sequence[int], why: Reason) -> Axes:
    """The axes into which a reshape splits one: units are the positions of the first, the others are pinned."""
    outer = next((k for k, size in enumerate(sizes) if size != 1), 0)
    inner = math.prod(sizes[outer + 1 :])
    for block in resolve(axis):
        ((units, span),) = resolve((block,))
        times = inner // math.gcd(span, inner)
        if units.size % times:
            pin(axis, why)
            return fixed(sizes, why)
        if times > 1:
            units.parts = (Block(Units(units.size // times, units.pinned), times),)
    blocks = resolve(axis)
    # Pixels that are cut into patches stay pixels.
    rest = fixed(sizes[outer + 1 :], blocks[0].units.pinned or why)
    return *(free(1) for _ in range(outer)), tuple(Block(units, span // inner) for units, span in blocks), *rest


def _ends(axis: Axis) -> set[int]:
    return set(accumulate(block.size for block in resolve(axis)))


def _cut(axis: Axis, place: int) -> bool:
    """Make a place a border between blocks; False if it is inside of a unit."""
    start = 0
    for units, span in resolve(axis):
        count, rest = divmod(place - start, span)
        if 0 < place - start < units.size * span:
            if rest:
                return False
            units.parts = (Block(Units(count, units.pinned)), Block(Units(units.size - count, units.pinned)))
            return True
        start += units.size * span
    return True


Permutations: TypeAlias = Mapping[int, Tensor]
"""By group: the index of the other network's unit at each position."""

Point: TypeAlias = tuple[tuple[str, ...], int, bool]
"""Where units are observed in a forward pass: the weights that activations are multiplied with, how often the same
weights were used before in the pass, and whether at the activations that enter (or at the result)."""


@dataclass(frozen=True)
class Group:
    """Units that can be permuted, named after the first weight that has them."""

    name: str
    size: int


class Place(NamedTuple):
    """The positions (units, span) of a group along one dimension of a tensor."""

    group: int
    dim: int
    rows: Tensor


@dataclass(frozen=True)
class Groups:
    """The symmetry of a network.

    Args:
        groups: groups, by number, in the order of the weights.
        weights: where every parameter and buffer has groups.
        points: the same for the tensors of a forward pass where units can be observed.
        stopped: what kept units in place (operations, unused weights, outputs other than the logits), and where.
    """

    groups: tuple[Group, ...]
    weights: dict[str, list[Place]]
    points: dict[Point, list[Place]] = field(default_factory=dict)
    stopped: tuple[Reason, ...] = ()

    def permute(self, state: Params, permutations: Permutations) -> dict[str, Tensor]:
        return {name: self.permuted(name, tensor, permutations) for name, tensor in state.items()}

    def permuted(self, name: str, tensor: Tensor, permutations: Permutations) -> Tensor:
        sources: dict[int, Tensor] = {}
        for group, dim, rows in self.weights.get(name, ()):
            if group in permutations:
                source = sources.setdefault(dim, torch.arange(tensor.shape[dim]))
                source[rows] = rows[permutations[group]]
        for dim, source in sources.items():
            tensor = tensor.index_select(dim, source.to(tensor.device))
        return tensor

    def identity(self) -> dict[int, Tensor]:
        return {number: torch.arange(group.size) for number, group in enumerate(self.groups)}


def groups_of(weights: Mapping[str, Axes], points: Mapping[Point, Axes]) -> Groups:
    """The free units of weights as groups, numbered in the order of the weights."""
    named: dict[Units, str] = {}
    for name, axes in weights.items():
        for units, _ in (block for axis in axes for block in resolve(axis)):
            if units.size > 1 and not units.pinned:
                named.setdefault(units, name)
    numbers = {units: number for number, units in enumerate(named)}

    def places(axes: Axes) -> Iterator[Place]:
        for dim, axis in enumerate(axes):
            start = 0
            for block in resolve(axis):
                if block.units in numbers:
                    rows = torch.arange(start, start + block.size).reshape(block.units.size, block.span)
                    yield Place(numbers[block.units], dim, rows)
                start += block.size

    # The first two dimensions: the others are positions in kernels.
    ends = [block for axes in weights.values() for axis in axes[:2] for block in resolve(axis)]
    reasons = dict.fromkeys(block.units.pinned for block in ends if block.size > 1 and block.units.pinned)
    return Groups(
        tuple(Group(name, units.size) for units, name in named.items()),
        {name: list(places(axes)) for name, axes in weights.items()},
        {point: list(places(axes)) for point, axes in points.items()},
        tuple(reason for reason in reasons if reason != NATURAL),
    )


Spec: TypeAlias = Mapping[str, Sequence[str | None]]
"""For every weight the name of the group on each dimension, None for fixed dimensions."""


def from_spec(spec: Spec, state: Params) -> Groups:
    """The groups from a spec: for every weight the name of the group on each dimension, or None.

    >>> spec = {"0.weight": ("hidden", None), "0.bias": ("hidden",), "1.weight": (None, "hidden")}
    >>> state = {"0.weight": torch.zeros(4, 2), "0.bias": torch.zeros(4), "1.weight": torch.zeros(3, 4)}
    >>> from_spec(spec, state).groups
    (Group(name='hidden', size=4),)
    """
    sizes: dict[str, tuple[str, int]] = {}
    for name, dims in spec.items():
        if name not in state:
            raise ModebridgeError(
                f"Expected the spec to name weights of the network, but got '{name}'; {near(name, state)}"
            )
        if len(dims) != state[name].dim():
            raise ModebridgeError(
                f"Expected one entry per dimension of '{name}', which has {state[name].dim()}, but got {len(dims)}; "
                "use None for fixed dimensions."
            )
        for group, size in zip(dims, state[name].shape, strict=True):
            if group is not None and sizes.setdefault(group, (name, size))[1] != size:
                first, other = sizes[group]
                raise ModebridgeError(
                    f"Expected group '{group}' to have one size, but got {other} in '{first}' and {size} in '{name}'; "
                    "give them different names."
                )
    numbers = {group: k for k, group in enumerate(sizes)}
    groups = tuple(Group(name, size) for name, (_, size) in sizes.items())
    weights = {
        name: [Place(numbers[g], k, torch.arange(sizes[g][1])[:, None]) for k, g in enumerate(dims) if g is not None]
        for name, dims in spec.items()
    }
    return Groups(groups, weights)
