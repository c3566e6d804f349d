"""What operations do to the axes of their tensors; one that has no rule here keeps units in place.

A rule takes a call and returns the axes of each tensor of the result. It may raise an error for a use of the operation
that it does not support.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from modebridge.alignment.groups import Axes, Axis, Reason, fixed, free, length, merge, pin, split, take, unify


@dataclass
class Call:
    """An operation of a forward pass.

    Args:
        func: torch's operation.
        args: its arguments in order.
        kwargs: its arguments by name.
        given: the tensors among them.
        before: the axes of each of them, by id.
        results: the tensors it returned.
        why: what to note for units that it pins.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Sequence[Tensor]
    before: Mapping[int, Axes]
    results: Sequence[Tensor]
    why: Reason

    def __getitem__(self, name: str) -> Any:
        """An argument by torch's name for it, or its default; None if the operation has no such argument."""
        if name in self.kwargs:
            return self.kwargs[name]
        for k, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                return self.args[k] if k < len(self.args) else argument.default_value
        return None

    def axes(self, tensor: Tensor) -> Axes:
        return self.before[id(tensor)]


Rule: TypeAlias = Callable[[Call], Sequence[Axes]]


def apply_rule(call: Call) -> Sequence[Axes] | None:
    """The axes of the results of an operation; None if there is no rule for it, or none for this use of it."""
    name = call.func._schema.name.removeprefix("aten::")
    rule = _elementwise if torch.Tag.pointwise in call.func.tags else RULES.get(name) or RULES.get(name.rstrip("_"))
    if rule is None:
        return None
    try:
        axes = rule(call)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    sizes = [[length(axis) for axis in labels] for labels in axes]
    return axes if sizes == [list(result.shape) for result in call.results] else None


def _elementwise(call: Call) -> Sequence[Axes]:
    given = [call.axes(tensor) for tensor in call.given]
    return [_broadcast(given, result.shape, call.why) for result in call.results]


def _broadcast(given: Sequence[Axes], shape: Sequence[int], why: Reason) -> Axes:
    """The axes of an elementwise result: axes of equal size are the same, those of size 1 are repeated."""
    out: list[Axis] = []
    for back in range(len(shape), 0, -1):
        met = [axes[-back] for axes in given if len(axes) >= back and length(axes[-back]) == shape[-back] != 1]
        for other in met[1:]:
            unify(met[0], other, why)
        out.append(met[0] if met else free(shape[-back]))
    return tuple(out)


def _constant(call: Call) -> Sequence[Axes]:
    """All values are the same, so their order is free."""
    return [tuple(map(free, result.shape)) for result in call.results]


def _reduce(call: Call) -> Sequence[Axes]:
    """Sums and similar reductions do not depend on the order of their terms."""
    axes = call.axes(call.given[0])
    dims = call["dim"]
    over = {dim % len(axes) for dim in ([dims] if isinstance(dims, int) else dims or range(len(axes)))}
    if call["keepdim"]:
        return [tuple(free(1) if k in over else axis for k, axis in enumerate(axes)) for _ in call.results]
    return [tuple(axis for k, axis in enumerate(axes) if k not in over) for _ in call.results]


def _move(call: Call) -> Sequence[Axes]:
    """Dimensions moved, added, dropped, selected from or sliced: torch's strides say where each one comes from."""
    axes = call.axes(call.given[0])
    probe = torch.empty([length(axis) for axis in axes], device="meta")
    source = {stride: axis for stride, axis in zip(probe.stride(), axes, strict=True) if length(axis) > 1}
    results = []
    for view in tensors_in(call.func(probe, *call.args[1:], **call.kwargs)):
        labels, gone = [], dict(source)
        for size, stride in zip(view.shape, view.stride(), strict=True):
            if size > 1:
                axis = gone.pop(stride)
                start = view.storage_offset() // stride % length(axis)
                labels.append(take(axis, start, start + size, call.why))
            else:
                labels.append(free(size))
        for axis in gone.values():
            pin(axis, call.why)
        results.append(tuple(labels))
    return results


def _view(call: Call) -> Sequence[Axes]:
    axes, (result,) = call.axes(call.given[0]), call.results
    before, after = [length(axis) for axis in axes], list(result.shape)
    if 0 in after or math.prod(before) != math.prod(after):
        raise ValueError("no rule for empty tensors, and for numbers read as several of another dtype")
    labels: list[Axis] = []
    i = j = 0
    while i < len(before) or j < len(after):
        # The shortest runs of dimensions on both sides with the same number of elements.
        left, right = i + 1, j + 1
        while math.prod(before[i:left]) != math.prod(after[j:right]):
            if math.prod(before[i:left]) < math.prod(after[j:right]):
                left += 1
            else:
                right += 1
        if j < len(after):
            labels.extend(split(merge(axes[i:left], call.why), after[j:right], call.why))
        i, j = left, right
    return [tuple(labels)]


def _cat(call: Call) -> Sequence[Axes]:
    (result,) = call.results
    dim = call["dim"] % result.dim()
    given = [call.axes(tensor) for tensor in call.given]
    rest = [(*axes[:dim], free(1), *axes[dim + 1 :]) for axes in given]
    labels = list(_broadcast(rest, [1 if k == dim else size for k, size in enumerate(result.shape)], call.why))
    labels[dim] = sum((axes[dim] for axes in given), ())
    return [tuple(labels)]


def _convolution(call: Call) -> Sequence[Axes]:
    images, kernel = call.axes(call["input"]), call.axes(call["weight"])
    groups, why = call["groups"], call.why
    into, out_of = (1, 0) if call["transposed"] else (0, 1)
    for axis in (*images[2:], *kernel[2:]):
        pin(axis, why)
    channels = kernel[into]
    if groups == 1:
        unify(images[1], kernel[out_of], why)
    elif call["transposed"]:
        raise ValueError("no rule for groups of a transposed convolution")
    elif length(kernel[1]) == 1:
        # Depthwise: one kernel (or several) per channel.
        unify(channels, merge([images[1], *fixed([length(channels) // groups])], why), why)
    else:
        # Groups are permuted as a whole.
        one, other = (split(axis, [groups, length(axis) // groups], why)[0] for axis in (images[1], channels))
        unify(one, other, why)
        pin(kernel[1], why)
    if call["bias"] is not None:
        unify(call.axes(call["bias"])[0], channels, why)
    return [(images[0], channels, *fixed(call.results[0].shape[2:]))]


def _matmul(call: Call) -> Sequence[Axes]:
    *bias, a, b = (call.axes(tensor) for tensor in call.given)
    unify(a[-1], b[-2], call.why)
    for x, y in zip(a[:-2], b[:-2], strict=True):
        unify(x, y, call.why)
    return [_broadcast([(*a[:-1], b[-1]), *bias], call.results[0].shape, call.why)]


def _norm(call: Call) -> Sequence[Axes]:
    """Batch, group and layer norm: weights and statistics have the channels, or the normalized dimensions."""
    axes = call.axes(call["input"])
    first = 1 if call["normalized_shape"] is None else len(axes) - len(call["normalized_shape"])
    for tensor in call.given[1:]:
        for own, axis in zip(call.axes(tensor), axes[first:], strict=False):
            unify(own, axis, call.why)
    if (call["group"] or 1) > 1:
        split(axes[1], [call["group"], length(axes[1]) // call["group"]], call.why)
    return [axes, *(fixed(extra.shape, call.why) for extra in call.results[1:])]


def _spatial(call: Call) -> Sequence[Axes]:
    """Pooling, resizing and padding: positions are pinned, the dimensions before them stay."""
    axes = call.axes(call.given[0])
    kept = len(axes) - len(call["pad"]) // 2 if call["pad"] else 2
    for axis in axes[kept:]:
        pin(axis, call.why)
    return [(*axes[:kept], *fixed(result.shape[kept:])) for result in call.results]


def tensors_in(tree: object) -> Iterator[Tensor]:
    """The tensors in the arguments or results of an operation."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from tensors_in(part)
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))


RULES: dict[str, Rule] = {
    name: rule
    for rule, names in {
        # Besides those that torch itself marks as pointwise: copies, and what normalizes along a dimension.
        _elementwise: "_prelu_kernel _log_softmax _safe_softmax _softmax _to_copy alias clone contiguous copy detach "
        "expand fill floor_divide hardswish hardtanh lift_fresh log_sigmoid_forward masked_fill rsub where zero",
        _constant: "empty empty_like full full_like new_empty new_full new_ones new_zeros ones ones_like zeros "
        "zeros_like",
        _reduce: "all amax amin any linalg_vector_norm logsumexp mean prod std std_mean sum var var_mean",
        _move: "as_strided permute select slice split split_with_sizes squeeze t transpose unbind unsqueeze",
        _view: "_reshape_alias _unsafe_view reshape view",
        _cat: "cat",
        _convolution: "convolution",
        _matmul: "addmm baddbmm bmm mm",
        _norm: "_native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm native_batch_norm "
        "native_group_norm native_layer_norm",
        _spatial: "_adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d constant_pad_nd max_pool2d_with_indices "
        "upsample_bicubic2d upsample_bilinear2d upsample_nearest2d",
    }.items()
    for name in names.split()
}
