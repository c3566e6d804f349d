"""Where the units of a group can be observed in a forward pass, and their activations there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from modebridge.alignment.groups import Dim, Groups, blocks, leaves
from modebridge.alignment.passes import Point


def points_of(groups: Groups, number: int) -> tuple[list[Point], list[Point]]:
    """The points where a group is observed at the inputs of weights, and at their outputs."""
    points = [point for point, dims in groups.points.items() if _is_seen(groups, number, dims)]
    return [point for point in points if point[1] is not None], [point for point in points if point[1] is None]


def _is_seen(groups: Groups, number: int, dims: Sequence[Dim]) -> bool:
    """Whether the units of a group can be distinguished in a tensor."""
    outer = groups.groups[number].outer
    having = [dim for dim in dims if number in _on(dim)]
    # Groups inside the units of this one are observed separately.
    if len(having) != 1 or {inner.number for inner in groups.inner(number)} & {g for dim in dims for g in _on(dim)}:
        return False
    elsewhere = [part.group for dim in dims if dim is not having[0] for part in _parts(dim)]
    for parts, _ in blocks(having[0]):
        numbers = [part.group for part in parts]
        if number in numbers:
            lost = outer is not None and outer not in (*numbers, *elsewhere)
            if lost or numbers.count(number) > 1:
                return False
    return True


def _on(dim: Dim) -> list[int]:
    return [leaf.group for leaf in leaves(dim) if leaf.group is not None]


def _parts(dim: Dim) -> tuple[Dim, ...]:
    return dim.parts if dim.form == "product" and _on(dim) else (dim,)


def units_of(groups: Groups, number: int, tensor: Tensor, dims: Sequence[Dim]) -> Tensor | None:
    """Units in rows, samples in columns; if a group has several blocks on a dimension, they are concatenated.

    None for a tensor that does not match the trace: then units cannot be distinguished.
    """
    fitted = [_fitted(dim, size) for dim, size in zip(dims, tensor.shape, strict=False)]
    if tensor.dim() != len(dims) or None in fitted:
        return None
    sized = [dim for dim in fitted if dim is not None]
    # Half precision is for the forward pass, not for what is computed from it here.
    tensor = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    place = next(k for k, dim in enumerate(dims) if number in _on(dim))
    pieces: list[Tensor] = []
    for parts, indices in blocks(sized[place]):
        if any(part.group == number for part in parts):
            piece = _taken(tensor, place, indices)
            rows = _rows(groups, number, piece, [*map(_parts, sized[:place]), parts, *map(_parts, sized[place + 1 :])])
            pieces.extend((rows.real, rows.imag) if rows.is_complex() else (rows,))
    return torch.cat(pieces, dim=1)


def _fitted(dim: Dim, size: int) -> Dim | None:
    """A traced dimension at its current size: batch sizes and lengths may differ; None if a group's size would."""
    if dim.size == size or not _on(dim):
        return dim if dim.size == size else Dim(size)
    rest = [k for k, part in enumerate(dim.parts) if not _on(part)] if dim.form == "product" else []
    if not rest:
        return None
    parts = list(dim.parts)
    others = math.prod(part.size for k, part in enumerate(parts) if k != rest[0])
    if size % others:
        return None
    parts[rest[0]] = Dim(size // others)
    return replace(dim, size=size, parts=tuple(parts))


def _taken(tensor: Tensor, place: int, indices: Tensor) -> Tensor:
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == len(indices):
        return tensor.narrow(place, first, len(indices))
    return tensor.index_select(place, indices.to(tensor.device))


def _rows(groups: Groups, number: int, tensor: Tensor, parts: Sequence[Sequence[Dim]]) -> Tensor:
    """Units in rows, samples in columns; other groups, whose order differs, are averaged out.

    `parts` are those of each dimension of the tensor.
    """
    flat = [part for dims in parts for part in dims]
    if not any(_on(part) for dims in parts[2:] for part in dims):
        tensor = _subsampled(tensor)
        # Subsampled dimensions have no groups.
        sizes = [*(part.size for dims in parts[:2] for part in dims), *tensor.shape[2:]]
    else:
        sizes = [part.size for part in flat]
    grid = tensor.reshape(sizes)
    outer = groups.groups[number].outer
    front = [
        next(k for k, part in enumerate(flat) if part.group == wanted)
        for wanted in (outer, number)
        if wanted is not None
    ]
    others = [k for k, part in enumerate(flat) if _on(part) and k not in front]
    if others:
        grid = grid.mean(dim=others, keepdim=True)
    rest = [k for k in range(grid.dim()) if k not in front]
    units = math.prod(grid.shape[k] for k in front)
    return grid.permute([*front, *rest]).reshape(units, -1)


def _subsampled(tensor: Tensor) -> Tensor:
    """Every second pixel of maps over 32 pixels wide, every fourth of those over 128, as the authors do."""
    if tensor.dim() != 4 or min(tensor.shape[2:]) <= 32:
        return tensor
    step = 4 if min(tensor.shape[2:]) > 128 else 2
    return tensor[:, :, ::step, ::step]
