"""Axes of tensors as symbols: which must be permuted together, and which must not be permuted.

Every dimension of every tensor in a forward pass is an `Axis`. Operations make axes equal (the channels of a
convolution and of the norm after it), cut them into factors (a width into heads times channels per head) or into
pieces (the parts of a fused projection), or pin them (classes and pixels have a fixed order). An axis that is in the
end neither pinned nor cut further is a group of units that can be permuted without changing the function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise


class Axis:
    """A union-find node: `size` positions, whole or made of parts, free or pinned.

    Attributes:
        form: "whole"; "product" if the parts are factors, the first changing slowest; "sum" if they are concatenated.
        family: for the first factor of a product, the axis that was cut and the other factors.
        parent: a node that this one was made equal to, nearer to the representative of all.
    """

    __slots__ = ("across", "family", "form", "members", "merged", "parent", "parts", "pinned", "size")

    def __init__(self, size: int, *, pinned: bool = False) -> None:
        self.size = size
        self.pinned = pinned
        self.form: str = "whole"
        self.parts: list[Axis] = []
        self.parent: Axis | None = None
        self.family: tuple[Axis, list[Axis]] | None = None
        # Axes that some operation combined with this one at each of its positions; see `along`.
        self.across: list[Axis] = []
        # One axis per position of the first factor, if they are distinguished (see `select`).
        self.members: list[Axis] = []
        self.merged = False

    @property
    def root(self) -> Axis:
        """The representative of all nodes that were made equal to this one."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node


def fixed(shape: Iterable[int]) -> tuple[Axis, ...]:
    """Pinned axes for a tensor of this shape."""
    return tuple(Axis(size, pinned=True) for size in shape)


def pin(axis: Axis) -> None:
    """Fix every position of an axis."""
    axis = axis.root
    if axis.size == 1:
        return
    axis.pinned = True
    for part in (*axis.parts, *axis.members):
        if not part.root.pinned:
            pin(part)


def unify(first: Axis, second: Axis) -> Axis:
    """Make two axes of equal size the same; returns the representative of both."""
    a, b = first.root, second.root
    if a is b or a.size == 1:
        return b
    for axis in (a, b):
        _tie(axis)
        keep(axis)
    if a.root.form == "whole" or b.root.form == "whole" or _refine_together(a.root, b.root):
        a, b = (a.root, b.root) if a.root.form == "whole" else (b.root, a.root)
    else:
        pin(a)
        pin(b)
    a, b = a.root, b.root
    if a is not b:
        a.parent = b
        b.across.extend(a.across)
        if a.pinned:
            pin(b)
    return b


def along(axes: Sequence[Axis], dims: Iterable[int]) -> None:
    """Record an operation that works along some dimensions of a tensor, at every position of the others.

    The other axes are then numbered alike at all positions of these: channels of heads, if heads are averaged.
    """
    moved = {dim % len(axes) for dim in dims}
    for k in moved:
        for axis in factors(axes[k]):
            axis.across.extend(other for j, rest in enumerate(axes) if j not in moved for other in factors(rest))


def keep(axis: Axis) -> None:
    """Record that the first factor of a cut is gone from a tensor: the other factors are numbered alike everywhere."""
    family = axis.root.family
    for factor in family[1] if family is not None else ():
        _tie(factor)


def _tie(axis: Axis) -> None:
    """Identify the members of an axis (see `select`) with the axis itself."""
    axis = axis.root
    axis.merged = True
    members, axis.members = axis.members, []
    for member in members:
        unify(member, axis)


def merge(axes: Sequence[Axis]) -> Axis:
    """The axis to which a reshape merges several, the first changing slowest."""
    real = [axis for axis in axes if axis.size != 1]
    if len(real) == 1:
        return real[0]
    for axis in real:
        _tie(axis)
    whole = Axis(math.prod([axis.size for axis in real]))
    if real:
        whole.form, whole.parts = "product", list(real)
        whole.pinned = all(axis.root.pinned for axis in real)
    return whole


def split(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """The axes into which a reshape splits one, the first changing slowest."""
    axis = axis.root
    real = [size for size in sizes if size != 1]
    if len(real) <= 1:
        pieces = iter([axis])
    elif axis.pinned:
        pieces = iter(fixed(real))
    else:
        pieces = iter(_cut(axis, real))
    return [Axis(1) if size == 1 else next(pieces) for size in sizes]


def take(axis: Axis, start: int, stop: int) -> Axis:
    """The axis of a slice: a separate piece if possible, so that pieces are not permuted into each other."""
    axis = axis.root
    sizes = [size for size in (start, stop - start, axis.size - stop) if size]
    if stop - start == axis.size:
        return axis
    if axis.pinned or stop - start <= 0 or not _pieces(axis, sizes):
        pin(axis)
        return Axis(max(stop - start, 0), pinned=True)
    offsets = accumulate((part.size for part in axis.parts), initial=0)
    inside = [part for part, offset in zip(axis.parts, offsets, strict=False) if start <= offset < stop]
    if len(inside) == 1:
        return inside[0]
    piece = Axis(stop - start)
    piece.form, piece.parts = "sum", inside
    return piece


def select(axis: Axis, index: int, others: Sequence[Axis]) -> list[Axis]:
    """The other axes of a tensor after one position of `axis` was selected.

    If `axis` is the first factor of a cut (the 3 of query, key and value), the other factors may be permuted
    differently at each of its positions: they get one member axis per position.
    """
    axis = axis.root
    family = axis.family
    pin(axis)
    if family is None or axis.size == 1:
        return list(others)
    owner, rest = family
    if any(factor.root.merged for factor in rest):
        keep(axis)
        return list(others)
    if not rest[0].members:
        for factor in rest:
            factor.members = [Axis(factor.size, pinned=factor.pinned) for _ in range(axis.size)]
        root = owner.root
        root.form = "sum"
        root.parts = [merge([factor.members[k] for factor in rest]) for k in range(axis.size)]
    chosen = {id(factor): factor.members[index] for factor in rest}
    return [_substitute(other, chosen) for other in others]


def factors(axis: Axis) -> list[Axis]:
    """An axis as a product of axes that are not products themselves."""
    axis = axis.root
    if axis.form != "product":
        return [axis]
    return [inner for part in axis.parts for inner in factors(part)]


def _substitute(axis: Axis, chosen: dict[int, Axis]) -> Axis:
    axis = axis.root
    if id(axis) in chosen:
        return chosen[id(axis)]
    if axis.form != "product":
        return axis
    parts = [_substitute(part, chosen) for part in axis.parts]
    return merge(parts) if any(new is not old.root for new, old in zip(parts, axis.parts, strict=True)) else axis


def _cut(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """Factors of the given sizes (none of them 1) of an axis that is not pinned."""
    if axis.form == "whole":
        axis.form, axis.parts = "product", [Axis(size) for size in sizes]
        axis.parts[0].family = (axis, axis.parts[1:])
        return axis.parts
    if axis.form == "sum" and len(axis.parts) == sizes[0] and len({part.size for part in axis.parts}) == 1:
        # Pieces of equal size as rows: each keeps its own permutation.
        first, rest = Axis(sizes[0], pinned=True), [Axis(size) for size in sizes[1:]]
        rows = [split(part, sizes[1:]) for part in axis.parts]
        for k, factor in enumerate(rest):
            factor.members = [row[k] for row in rows]
        first.family = (axis, rest)
        return [first, *rest]
    inner = factors(axis)
    fine = _common(sizes, [part.size for part in inner]) if axis.form == "product" else None
    if fine is None:
        pin(axis)
        return list(fixed(sizes))
    cut, following = [], iter(_split_each(inner, fine))
    for size in sizes:
        taken: list[Axis] = []
        while math.prod([piece.size for piece in taken]) < size:
            taken.append(next(following))
        cut.append(merge(taken))
    return cut


def _split_each(axes: Sequence[Axis], fine: Sequence[int]) -> list[Axis]:
    """Cut adjacent axes into factors of the sizes of a common refinement."""
    pieces: list[Axis] = []
    rest = iter(fine)
    for axis in axes:
        sizes: list[int] = []
        while math.prod(sizes) < axis.size:
            sizes.append(next(rest))
        pieces.extend(split(axis, sizes))
    return pieces


def _common(a: Sequence[int], b: Sequence[int]) -> list[int] | None:
    """The coarsest cut that refines both, or None if they cross, as 2 x 3 and 3 x 2 do."""
    ends = sorted({math.prod(sizes[k:]) for sizes in (a, b) for k in range(len(sizes) + 1)}, reverse=True)
    if any(big % small for big, small in pairwise(ends)):
        return None
    return [big // small for big, small in pairwise(ends)]


def _pieces(axis: Axis, sizes: Sequence[int]) -> bool:
    """Cut an axis into consecutive pieces of these sizes (or finer ones); False if that is not possible."""
    if axis.form == "product":
        first, inner = axis.parts[0].root, axis.size // axis.parts[0].size
        if first.family is not None and first.family[0].root is axis and not any(size % inner for size in sizes):
            select(first, 0, [])
        if axis.form != "sum":
            return False
    if axis.form == "whole":
        axis.form, axis.parts = "sum", [Axis(size) for size in sizes]
        return True
    ends = {sum(sizes[:k]) for k in range(len(sizes))}
    parts: list[Axis] = []
    position = 0
    for part in axis.parts:
        cuts = sorted({0, *(end - position for end in ends if 0 < end - position < part.size), part.size})
        lengths = [b - a for a, b in pairwise(cuts)]
        if len(lengths) == 1:
            parts.append(part)
        elif part.root.pinned:
            parts.extend(fixed(lengths))
        elif _pieces(part.root, lengths):
            parts.extend(part.root.parts)
        else:
            return False
        position += part.size
    axis.parts = parts
    return True


def _refine_together(a: Axis, b: Axis) -> bool:
    """Make two axes with parts the same, part by part; False if their cuts cross."""
    if a.form == b.form == "product":
        mine, theirs = factors(a), factors(b)
        fine = _common([part.size for part in mine], [part.size for part in theirs])
        if fine is None:
            return False
        for x, y in zip(_split_each(mine, fine), _split_each(theirs, fine), strict=True):
            unify(x, y)
        return True
    sizes = [part.size for axis in (a, b) if axis.form == "sum" for part in axis.parts]
    if a.form == b.form == "sum":
        ends = sorted({sum(part.size for part in axis.parts[:k]) for axis in (a, b) for k in range(len(axis.parts))})
        sizes = [y - x for x, y in zip(ends, [*ends[1:], a.size], strict=True)]
    if not (_pieces(a, sizes) and _pieces(b, sizes)) or [x.size for x in a.parts] != [y.size for y in b.parts]:
        return False
    for x, y in zip(list(a.parts), list(b.parts), strict=True):
        unify(x, y)
    return True
