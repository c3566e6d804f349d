"""Protect inputs and tapped features from networks that work in place."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from modebridge.batches import map_inputs
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["tracing", "version", "without_side_effects"]

T = TypeVar("T")

_CHANGES: MutableMapping[object, dict[bool, bool]] = WeakKeyDictionary()
"""Whether a network changes its inputs, by training mode, for the modes in which it has run."""


def without_side_effects(net: Callable[..., Any], function: Callable[..., T], *inputs: Inputs) -> T:
    """`function(*inputs)` with the inputs unchanged, even if `net` starts with `x.sub_(mean)`.

    The first call gets copies and checks whether they were changed. If so, all further calls get copies too; otherwise
    none does. A compiler or an exporter always gets copies while tracing, and removes those that nothing writes to.

    Args:
        net: the module or function that runs; the result of the check is stored for it.
        function: runs `net`.
        inputs: tensors, or dicts of tensors.

    >>> images = torch.ones(2)
    >>> without_side_effects(torch.nn.ReLU(inplace=True), lambda x: x.sub_(1), images), images
    (tensor([0., 0.]), tensor([1., 1.]))
    """
    if tracing():
        return function(*[map_inputs(Tensor.clone, given) for given in inputs])
    try:
        known = _CHANGES.setdefault(net, {})
    except TypeError:  # a function without weak references or a hash always gets copies
        known = {}
    mode = bool(getattr(net, "training", False))
    copied = known.get(mode, True)
    used = [map_inputs(_copy, given) for given in inputs] if copied else inputs
    given = _tensors(used)
    before = [version(tensor) for tensor in given]
    result = function(*used)
    changed = [version(tensor) for tensor in given] != before
    if mode not in known:
        known[mode] = changed or any(map(_differ, given, _tensors(inputs)))
    elif changed and not copied:
        raise ModebridgeError(
            f"Expected {getattr(net, '__name__', type(net).__name__)} to change its input in place always or never, "
            "but got a call that did after one that did not; start its forward pass with a copy, x = x.clone()."
        )
    return result


def tracing() -> bool:
    """Whether a compiler or an exporter is tracing, so that tensors have no version counter."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _tensors(inputs: Any) -> list[Tensor]:
    return [tensor for given in inputs for tensor in ([given] if isinstance(given, Tensor) else given.values())]


def _copy(tensor: Tensor) -> Tensor:
    if not torch.is_inference_mode_enabled():
        return tensor.clone()
    # Inference tensors do not track versions; ordinary tensors do, even in inference mode.
    with torch.inference_mode(False), torch.no_grad():
        return tensor.clone()


def version(tensor: Tensor) -> int:
    """Number of in-place changes of a tensor; -1 for inference tensors, which do not track them."""
    return -1 if tensor.is_inference() else tensor._version


def _differ(copy: Tensor, original: Tensor) -> bool:
    """Whether values have changed without a version change (`x.data`), if that can be checked."""
    if original.device.type == "meta" or (original.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return False
    return not torch.equal(copy, original)
