"""Rules for the axes of reshaped tensors: views, slices, concatenations, lookups; see `operations`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from modebridge.alignment.axes import Axis, fixed, merge, pin, select, split, take, unify

Labels: TypeAlias = tuple[Axis, ...]
Ask: TypeAlias = Callable[[Tensor], Labels]
Rule: TypeAlias = Callable[[Ask, tuple[Any, ...], Mapping[str, Any], Any], list[Labels] | None]


def together(labels: Sequence[Labels], shape: Sequence[int]) -> Labels:
    """The axes of an elementwise result: axes of equal size are unified, those of size 1 are broadcast."""
    out: list[Axis] = []
    for place, size in enumerate(shape):
        back = len(shape) - place
        met = [axes[-back] for axes in labels if len(axes) >= back and axes[-back].size == size != 1]
        for other in met[1:]:
            unify(met[0], other)
        out.append(met[0].root if met else Axis(size))
    return tuple(out)


def _view(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels, before, after = ask(args[0]), list(args[0].shape), list(out.shape)
    axes: list[Axis] = []
    i = j = 0
    while i < len(before) or j < len(after):
        # The shortest runs of dimensions on both sides with the same number of elements.
        left, right = before[i : i + 1] or [1], after[j : j + 1] or [1]
        while math.prod(left) != math.prod(right):
            if math.prod(left) < math.prod(right):
                left = before[i : i + len(left) + 1]
            else:
                right = after[j : j + len(right) + 1]
        whole = merge(labels[i : i + len(left)]) if i < len(before) else Axis(1)
        axes.extend(split(whole, right) if j < len(after) else [])
        i, j = i + len(left), j + len(right)
    return [tuple(axes)]


def _permute(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = ask(args[0])
    return [tuple(labels[dim] for dim in args[1])]


def _transpose(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    axes = list(ask(args[0]))
    a, b = (args[1], args[2]) if len(args) > 2 else (0, -1)
    if len(axes) > 1:
        axes[a], axes[b] = axes[b], axes[a]
    return [tuple(axes)]


def _unsqueeze(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    axes = list(ask(args[0]))
    axes.insert(args[1] % (len(axes) + 1), Axis(1))
    return [tuple(axes)]


def _squeeze(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = ask(args[0])
    given = args[1] if len(args) > 1 else list(range(len(labels)))
    dims = {dim % len(labels) for dim in ([given] if isinstance(given, int) else given)} if labels else set()
    return [tuple(axis for k, axis in enumerate(labels) if not (k in dims and axis.size == 1))]


def _select(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = list(ask(args[0]))
    axis = labels.pop(args[1])
    return [tuple(select(axis, args[2] % axis.size, labels))]


def _unbind(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = list(ask(args[0]))
    axis = labels.pop(args[1] if len(args) > 1 else 0)
    return [tuple(select(axis, index, labels)) for index in range(len(out))]


def _slice(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = list(ask(args[0]))
    dim = (args[1] if len(args) > 1 else 0) % len(labels)
    start, step = (args[2] if len(args) > 2 else 0) or 0, args[4] if len(args) > 4 else 1
    size = out.shape[dim]
    if step != 1:
        pin(labels[dim])
        labels[dim] = Axis(size, pinned=True)
    else:
        first = max(start + labels[dim].size if start < 0 else start, 0)
        labels[dim] = take(labels[dim], first, first + size)
    return [tuple(labels)]


def _split(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = list(ask(args[0]))
    dim = (args[2] if len(args) > 2 else kwargs.get("dim", 0)) % len(labels)
    whole, position, pieces = labels[dim], 0, []
    for piece in out:
        labels[dim] = take(whole, position, position + piece.shape[dim])
        position += piece.shape[dim]
        pieces.append(tuple(labels))
    return pieces


def _cat(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % out.dim()
    labels = [ask(tensor) for tensor in args[0] if tensor.dim() == out.dim()]
    parts = [given[dim].root for given in labels if given[dim].size]
    rest = [(*given[:dim], Axis(1), *given[dim + 1 :]) for given in labels]
    axes = list(together(rest, [1 if k == dim else size for k, size in enumerate(out.shape)]))
    axes[dim] = parts[0] if len(parts) == 1 else Axis(out.shape[dim])
    if len(parts) > 1:
        axes[dim].form, axes[dim].parts = "sum", parts
    return [tuple(axes)]


def _repeat(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """Consecutive copies are all alike, so their order is free."""
    labels = ask(args[0])
    wide = [*(Axis(1) for _ in range(out.dim() - len(labels))), *labels]
    return [tuple(merge([Axis(times), axis]) for times, axis in zip(args[1], wide, strict=True))]


def _pixel_shuffle(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = ask(args[0])
    channels, inside = split(labels[-3], [out.shape[-3], args[1] ** 2])
    pin(inside)
    return [(*labels[:-3], channels, *fixed(out.shape[-2:]))]


def _channel_shuffle(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = ask(args[0])
    group, inside = split(labels[1], [args[1], labels[1].size // args[1]])
    return [(labels[0], merge([inside, group]), *labels[2:])]


def _stack(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % out.dim()
    axes = list(together([ask(tensor) for tensor in args[0]], [*out.shape[:dim], *out.shape[dim + 1 :]]))
    axes.insert(dim, Axis(out.shape[dim], pinned=True))
    return [tuple(axes)]


def _in_order(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """Operations along named dimensions that depend on the order there: roll, flip, cumsum, sort."""
    labels = ask(args[0])
    dims = args[-1]
    for dim in [dims] if isinstance(dims, int) else dims:
        pin(labels[dim])
    return [labels]


def _pad(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = list(ask(args[0]))
    for k, size in enumerate(out.shape):
        if size != labels[k].size or args[1][2 * (len(labels) - 1 - k) : 2 * (len(labels) - k)] not in ([], [0, 0]):
            pin(labels[k])
            labels[k] = Axis(size, pinned=True)
    return [tuple(labels)]


def _index(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """Rows looked up in a table: the rows are pinned, the columns are free."""
    labels, where = ask(args[0]), _looked_up(ask, args[0], args[1])
    if where is None:
        return None
    new = out.dim() - (len(labels) - len(where))
    fresh = fixed(out.shape[where.start : where.start + new])
    return [(*labels[: where.start], *fresh, *labels[where.stop :])]


def _index_put(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """Rows written into a table: the columns of both are the same."""
    labels, where = ask(args[0]), _looked_up(ask, args[0], args[1])
    if where is None:
        return None
    values = ask(args[2])
    after = labels[where.stop :]
    rows, columns = values[: max(len(values) - len(after), 0)], values[max(len(values) - len(after), 0) :]
    if where.start > 0 and any(axis.size > 1 for axis in rows):
        return None
    for axis in rows:
        pin(axis)
    together([after, columns], [axis.size for axis in after])
    return [labels]


def _looked_up(ask: Ask, table: Tensor, indices: Sequence[Tensor | None]) -> range | None:
    """Pin the indexed dimensions and the indices; returns the dimensions, or None if they are not adjacent."""
    used: list[int] = []
    place = 0
    for index in indices:
        # A mask indexes as many dimensions as it has.
        width = index.dim() if index is not None and index.dtype in (torch.bool, torch.uint8) else 1
        used.extend(range(place, place + width) if index is not None else ())
        place += width
    if not used or used != list(range(used[0], used[-1] + 1)):
        return None
    for axis in (*ask(table)[used[0] : used[-1] + 1], *(a for i in indices if i is not None for a in ask(i))):
        pin(axis)
    return range(used[0], used[-1] + 1)


def _index_select(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels, dim = list(ask(args[0])), args[1]
    pin(labels[dim])
    labels[dim] = Axis(out.shape[dim], pinned=True)
    return [tuple(labels)]


def _index_add(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """Rows added to rows of a table: the columns of both are the same."""
    labels, source, dim = ask(args[0]), ask(args[3]), args[1] % out.dim()
    for k, (axis, other) in enumerate(zip(labels, source, strict=True)):
        if k == dim:
            pin(axis)
            pin(other)
        elif axis.size == other.size:
            unify(axis, other)
    return [labels]


def _embedding(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    table = ask(args[0])
    pin(table[0])
    return [(*ask(args[1]), table[1])]


def _as_real(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    return [(*ask(args[0]), Axis(2, pinned=True))]


def _as_complex(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = ask(args[0])
    pin(labels[-1])
    return [labels[:-1]]


def _restride(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    return [ask(args[0])] if list(args[1]) == [axis.size for axis in ask(args[0])] else None


RESHAPING: dict[Rule, str] = {
    _view: "view _unsafe_view reshape _reshape_alias",
    _permute: "permute",
    _transpose: "transpose t",
    _unsqueeze: "unsqueeze",
    _squeeze: "squeeze",
    _select: "select",
    _unbind: "unbind",
    _slice: "slice",
    _split: "split split_with_sizes unsafe_split unsafe_split_with_sizes",
    _repeat: "repeat",
    _pixel_shuffle: "pixel_shuffle",
    _channel_shuffle: "channel_shuffle native_channel_shuffle",
    _cat: "cat",
    _stack: "stack",
    _in_order: "roll flip cumsum",
    _pad: "constant_pad_nd",
    _index: "index",
    _index_put: "index_put _unsafe_index_put",
    _index_select: "index_select",
    _index_add: "index_add index_copy",
    _embedding: "embedding",
    _restride: "as_strided",
    _as_real: "view_as_real",
    _as_complex: "view_as_complex",
}
