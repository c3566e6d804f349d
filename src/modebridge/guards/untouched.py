"""Networks that work in place: what they were given, and what was read on the way, stays as it was."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from modebridge.batches import each
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs

__all__ = ["tracing", "untouched", "version"]

T = TypeVar("T")

_CHANGES: MutableMapping[object, dict[bool, bool]] = WeakKeyDictionary()
"""Whether a network changes its inputs, in evaluation and in training mode, as far as it has been run."""


def untouched(net: Callable[..., Any], function: Callable[..., T], *inputs: Inputs) -> T:
    """`function(*inputs)`, the inputs afterwards what they were, though `net` may begin with `x.sub_(mean)`.

    The first call gets copies, and it is seen whether they were changed: then all further calls get copies too, else
    none does. While a compiler or an exporter traces there is nothing to look at: it is handed copies, and leaves out
    those that nobody writes to.

    Args:
        net: what runs: a module, or any function; it is remembered by it.
        function: runs it.
        inputs: tensors, or dicts of them.

    >>> images = torch.ones(2)
    >>> untouched(torch.nn.ReLU(inplace=True), lambda x: x.sub_(1), images), images
    (tensor([0., 0.]), tensor([1., 1.]))
    """
    if tracing():
        return function(*[each(Tensor.clone, given) for given in inputs])
    try:
        known = _CHANGES.setdefault(net, {})
    except TypeError:  # a function that cannot be remembered always gets copies
        known = {}
    mode = bool(getattr(net, "training", False))
    if known.get(mode, True):
        copies = [each(_copy, given) for given in inputs]
        given, before = _tensors(copies), [version(tensor) for tensor in _tensors(copies)]
        result = function(*copies)
        if mode not in known:
            known[mode] = any(
                version(copy) != count or _differ(copy, original)
                for copy, count, original in zip(given, before, _tensors(inputs), strict=True)
            )
        return result
    given = _tensors(inputs)
    before = [version(tensor) for tensor in given]
    result = function(*inputs)
    if [version(tensor) for tensor in given] != before:
        raise ModebridgeError(
            f"Expected {getattr(net, '__name__', type(net).__name__)} to change its input in place always or never, "
            "but got a call that did after one that did not; begin its forward pass with a copy, x = x.clone()."
        )
    return result


def tracing() -> bool:
    """Whether a compiler or an exporter is looking on, so that tensors have no history of their own."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _tensors(inputs: Any) -> list[Tensor]:
    return [tensor for given in inputs for tensor in ([given] if isinstance(given, Tensor) else given.values())]


def _copy(tensor: Tensor) -> Tensor:
    if not torch.is_inference_mode_enabled():
        return tensor.clone()
    # Tensors of inference mode do not count their changes; ordinary ones do, even there.
    with torch.inference_mode(False), torch.no_grad():
        return tensor.clone()


def version(tensor: Tensor) -> int:
    """How often a tensor has been changed in place; -1 for those of inference mode, which do not count."""
    return -1 if tensor.is_inference() else tensor._version


def _differ(copy: Tensor, original: Tensor) -> bool:
    """Whether numbers have changed behind the count's back (`x.data`), where that can be seen."""
    if original.device.type == "meta" or (original.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return False
    return not torch.equal(copy, original)
