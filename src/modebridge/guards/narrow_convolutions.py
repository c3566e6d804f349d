"""Workaround for a bug of torch on CPUs: gradients of narrow 1x1 convolutions with a stride.

For such a convolution oneDNN (3.12, in torch 2.13) writes beyond the end of its memory if images or weights are in
channels-last format and have fewer channels than a register has floats, 8 with AVX2 and 16 with AVX-512: the process
crashes some steps later, or continues with wrong numbers. A 1x1 convolution with a stride equals one without a stride
on a subsampled image, which works correctly.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from modebridge.guards.without_side_effects import tracing
from modebridge.types import Params

__all__ = ["WIDTH", "correct_conv_gradients", "is_narrow"]

WIDTH = 16
"""Number of input channels from which gradients are correct on every CPU: the floats in an AVX-512 register."""

_NARROW: MutableMapping[nn.Module, bool] = WeakKeyDictionary()


def is_narrow(net: nn.Module) -> bool:
    """Whether a network has a layer that is affected by the bug.

    >>> is_narrow(nn.Conv2d(3, 16, 1, stride=2)), is_narrow(nn.Conv2d(16, 16, 1, stride=2))
    (True, False)
    """
    return any(
        isinstance(layer, nn.Conv2d) and _affected(layer.weight, layer.stride, layer.padding, layer.groups)
        for layer in net.modules()
    )


def correct_conv_gradients(net: nn.Module, state: Params) -> AbstractContextManager[object]:
    """A context in which the network's gradients at these parameters are correct; for most networks it does nothing."""
    device = next((tensor.device.type for tensor in state.values()), "cpu")
    if device != "cpu" or not torch.is_grad_enabled():
        return nullcontext()
    # A compiler traces once, and would recompile whenever the table of networks grows.
    narrow = is_narrow(net) if tracing() else _NARROW.get(net)
    if narrow is None:
        narrow = _NARROW[net] = is_narrow(net)
    return _Subsampling() if narrow else nullcontext()


class _Subsampling(TorchFunctionMode):
    """Subsamples the input of a narrow 1x1 convolution and runs it without a stride."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (_conv2d if func is torch.conv2d else func)(*args, **(kwargs or {}))


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    if input.dtype == torch.float32 and _affected(weight, stride, padding, groups):
        rows, columns = stride if isinstance(stride, Sequence) else (stride, stride)
        input, stride = input[..., ::rows, ::columns], 1
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _affected(weight: Tensor, stride: int | Sequence[int], padding: int | str | Sequence[int], groups: int) -> bool:
    strides = stride if isinstance(stride, Sequence) else (stride,)
    if groups != 1 or max(strides) == 1 or weight.shape[1] >= WIDTH or tuple(weight.shape[2:]) != (1, 1):
        return False
    pads = () if padding == "valid" else padding if isinstance(padding, Sequence) else (padding,)
    return not any(pads)
