"""The effect of every operation on the axes of its tensors; operations not listed here keep units in place.

A rule takes a function from tensors to their axes, the arguments and the result, and returns the axes of each tensor
of the result, or None if it does not support this use of the operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from modebridge.alignment.axes import Axis, along, fixed, keep, merge, pin, split, take, unify
from modebridge.alignment.reshaping import RESHAPING, Ask, Labels, Rule, together


def _elementwise(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    results = [out] if isinstance(out, Tensor) else list(out)
    return [together([ask(tensor) for tensor in given], result.shape) for result in results]


def _same(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """The axes of the first argument, whatever the others are."""
    return [ask(args[0])]


def _softmax(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = ask(args[0])
    along(labels, [args[1]] if labels else [])
    return [labels]


def _uniform(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """A constant tensor: its order is free."""
    return [tuple(Axis(size) for size in out.shape)]


def _reduce(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """Sums and similar reductions do not depend on the order of their terms."""
    return _over(ask(args[0]), args[1] if len(args) > 1 else kwargs.get("dim"), out)


def _norm(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """A reduction whose arguments have the order of the norm before the dimensions."""
    return _over(ask(args[0]), args[2] if len(args) > 2 else kwargs.get("dim"), out)


def _extreme(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """The maximum of two tensors, or along a dimension, which is pinned because its index is returned too."""
    if len(args) > 1 and not isinstance(args[1], Tensor):
        pin(ask(args[0])[args[1]])
        return _over(ask(args[0]), args[1], out)
    return _elementwise(ask, args, kwargs, out) if len(args) > 1 else _over(ask(args[0]), None, out)


def _over(labels: Labels, dims: int | list[int] | None, out: Any) -> list[Labels]:
    results = [out] if isinstance(out, Tensor) else list(out)
    if dims is None or (isinstance(dims, list) and not dims):
        gone = set(range(len(labels)))
    else:
        gone = {dim % len(labels) for dim in ([dims] if isinstance(dims, int) else dims)}
    along(labels, gone)
    for k in gone:
        keep(labels[k])
    kept = all(result.dim() == len(labels) for result in results)
    axes = tuple(Axis(1) if k in gone else axis for k, axis in enumerate(labels) if kept or k not in gone)
    return [axes for _ in results]


def _convolution(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    x, weight, bias, *_, transposed, _, groups = args
    images, kernel = ask(x), ask(weight)
    along(images, [1])
    if len(images) != len(kernel):
        return None
    into, out_of = (1, 0) if transposed else (0, 1)
    for axis in (*images[2:], *kernel[2:]):
        pin(axis)
    if groups == 1:
        unify(images[1], kernel[out_of])
        channels = kernel[into].root
    elif not transposed and kernel[1].size == 1:
        # Depthwise: one kernel (or several) per channel.
        outer, inner = split(kernel[0], [groups, kernel[0].size // groups])
        unify(images[1], outer)
        channels = merge([outer, inner]).root
    else:
        group, inside = split(images[1], [groups, images[1].size // groups])
        first, per_group = split(kernel[0], [groups, kernel[0].size // groups])
        unify(group, first)
        if transposed:
            unify(inside, per_group)
            channels = merge([first, kernel[1]])
        else:
            unify(inside, kernel[1])
            channels = kernel[0].root
    if bias is not None:
        unify(ask(bias)[0], channels)
    return [(images[0], channels.root, *fixed(out.shape[2:]))]


def _matmul(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    a, b = ask(args[0]), ask(args[1])
    along(a, [-1])
    along(b, [-2])
    unify(a[-1], b[-2])
    batch = [unify(x, y) for x, y in zip(a[:-2], b[:-2], strict=True)]
    return [(*batch, a[-2].root, b[-1].root)]


def _addmm(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    (product,) = _matmul(ask, args[1:], kwargs, out) or [()]
    return [together([product, ask(args[0])], out.shape)]


def _glu(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """One half of a dimension times a gate from the other."""
    labels = list(ask(args[0]))
    dim = args[1] if len(args) > 1 else -1
    half = labels[dim].size // 2
    labels[dim] = unify(take(labels[dim], 0, half), take(labels[dim], half, 2 * half))
    return [tuple(labels)]


def _weight_norm(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels, dim = ask(args[0]), args[2] if len(args) > 2 else 0
    along(labels, [k for k in range(len(labels)) if k != dim])
    return [together([labels, ask(args[1])], out[0].shape), ask(args[1])]


def _batch_norm(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = ask(args[0])
    along(labels, [k for k in range(len(labels)) if k != 1])
    for tensor in args[1:5]:
        if isinstance(tensor, Tensor):
            unify(ask(tensor)[0], labels[1])
    # Saved means and deviations, or empty tensors.
    return [
        labels,
        *((labels[1].root,) if extra.dim() == 1 and extra.numel() else fixed(extra.shape) for extra in out[1:]),
    ]


def _layer_norm(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels = ask(args[0])
    along(labels, range(len(labels) - len(args[1]), len(labels)))
    for tensor in args[2:4]:
        if isinstance(tensor, Tensor):
            given = ask(tensor)
            for x, y in zip(given, labels[-len(given) :], strict=True):
                unify(x, y)
    return [labels, *(fixed(extra.shape) for extra in out[1:])]


def _group_norm(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    labels, groups = ask(args[0]), args[6]
    if groups > 1:
        split(labels[1], [groups, labels[1].size // groups])
    for tensor in args[1:3]:
        if isinstance(tensor, Tensor):
            unify(ask(tensor)[0], labels[1])
    return [labels, *(fixed(extra.shape) for extra in out[1:])]


def _pool(ask: Ask, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[Labels] | None:
    """Batch and channels stay, spatial positions are pinned."""
    labels = ask(args[0])
    for axis in labels[2:]:
        pin(axis)
    results = [out] if isinstance(out, Tensor) else list(out)
    return [(*labels[:2], *fixed(result.shape[2:])) for result in results]


_ARITHMETIC: dict[Rule, str] = {
    _elementwise: "abs add addcdiv addcmul angle bitwise_and bitwise_not bitwise_or ceil celu clamp clamp_max "
    "clamp_min complex copy cos div elu eq erf exp exp2 expand expm1 floor floor_divide ge gelu gt hardsigmoid "
    "hardswish hardtanh isinf isnan le leaky_relu lerp log log1p log2 log_sigmoid_forward logical_and logical_not "
    "logical_or lt masked_fill maximum minimum mish mul nan_to_num native_dropout ne neg pow "
    "_prelu_kernel reciprocal relu remainder round rsqrt rsub sigmoid sign silu sin softplus sqrt square "
    "sub tan tanh threshold trunc where xlogy",
    # Copies, constants or independent draws: the result is numbered like the argument.
    _same: "_conj _to_copy alias bernoulli clone conj_physical contiguous detach fill lift_fresh resolve_conj zero",
    _softmax: "_softmax _safe_softmax _log_softmax",
    _uniform: "empty empty_like full full_like new_empty new_full new_ones new_zeros ones ones_like zeros zeros_like",
    _reduce: "amax amin all any logsumexp mean prod std sum var var_mean std_mean",
    _norm: "norm linalg_vector_norm",
    _extreme: "max min",
    _glu: "glu",
    _weight_norm: "_weight_norm_interface",
    _convolution: "convolution",
    _matmul: "mm bmm",
    _addmm: "addmm baddbmm",
    _batch_norm: "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm",
    _layer_norm: "native_layer_norm",
    _group_norm: "native_group_norm",
    _pool: "max_pool2d_with_indices max_pool1d_with_indices avg_pool1d avg_pool2d _adaptive_avg_pool2d "
    "adaptive_max_pool2d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
    "reflection_pad2d "
    "replication_pad2d max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d",
}

OPERATIONS: dict[str, Rule] = {
    f"aten::{name}": rule for rule, names in {**_ARITHMETIC, **RESHAPING}.items() for name in names.split()
}
