"""Third-party surprises: networks that read values, odd checkpoints, fused attention, oneDNN's bug."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from modebridge.batches import flatten, map_inputs
from modebridge.errors import ModebridgeError, first_line, some
from modebridge.types import Inputs

T = TypeVar("T")


def tracing() -> bool:
    """Whether a compiler or an exporter is tracing, so that tensors have no version counter."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def version(tensor: Tensor) -> int:
    """Number of in-place changes of a tensor; -1 for inference tensors, which do not track them."""
    return -1 if tensor.is_inference() else tensor._version


FAILED = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)
"""Exceptions that modules raise for unsuitable inputs."""

_ATTENTION = threading.RLock()


@contextmanager
def plain_attention() -> Iterator[None]:
    """Turn off fused attention, into which exporters and the counter of matrix products cannot see."""
    # The switches are global: of two threads here, the last one would restore what the first one had set.
    with _ATTENTION:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def on_copy(
    module: nn.Module,
    inputs: Sequence[Inputs],
    work: Callable[[nn.Module, Sequence[Inputs]], T],
    *,
    weightless: bool = True,
) -> T:
    """Call a function on a weightless copy of a module, or on a real copy if a weightless one cannot run.

    `work` gets the copy, in evaluation mode, and copies of the inputs on its device (zeros, if they have no values); it
    may be called twice. For one small batch a weightless copy takes longer than the computation itself.
    """
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    try:
        with torch.inference_mode(False), torch.no_grad(), plain_attention():
            try:
                if weightless:
                    meta = torch.device("meta")
                    return work(_weightless(module), [map_inputs(partial(_moved, meta), given) for given in inputs])
            except ModebridgeError:
                raise
            except FAILED:  # the module reads values, or holds tensors that are not buffers
                pass
            return work(copy.deepcopy(module).eval(), [map_inputs(partial(_moved, device), given) for given in inputs])
    except ModebridgeError:
        raise
    except FAILED as error:
        valued = any(tensor.device.type != "meta" for given in inputs for tensor in flatten(given).values())
        shapes = ", ".join(str(tuple(tensor.shape)) for given in inputs for tensor in flatten(given).values())
        fix = "check its shape and dtype" if valued else "give the shape of one image or feature without the batch axis"
        raise ModebridgeError(
            f"Expected {type(module).__name__} to run on {'an example' if valued else 'zeros'} of shape {shapes}, "
            f"but got '{first_line(error)}'; {fix}."
        ) from error


def _moved(device: torch.device, tensor: Tensor) -> Tensor:
    if tensor.device.type == "meta":
        return torch.zeros_like(tensor, device=device)
    # Cloned: a network may change its input in place.
    return tensor.detach().to(device, copy=True)


def _weightless(module: nn.Module) -> nn.Module:
    # deepcopy uses the objects in its memo, so the weights are never copied, not even temporarily.
    memo: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False) for p in module.parameters()
    }
    memo.update({id(b): torch.empty_like(b, device="meta") for b in module.buffers()})
    return copy.deepcopy(module, memo).eval()


def check_state(given: Mapping[str, Any]) -> None:
    """Raise an error for a checkpoint that only holds dicts of tensors, of which nobody said which one to take."""
    inner = [str(name) for name, value in given.items() if isinstance(value, Mapping)]
    if inner and not any(isinstance(value, Tensor) for value in given.values()):
        raise ModebridgeError(
            f"Expected a state dict, but got a checkpoint with {some(inner)}; pass checkpoint['{inner[0]}'], or the "
            "path of its file."
        )


def check_weights(name: str, saved: Tensor, expected: Tensor | None) -> None:
    """Raise an error for a tensor of a checkpoint that `copy_` cannot read, or would turn into wrong weights."""
    got, fix = unusual(saved), "save plain dense tensors, with tensor.to_dense() or tensor.dequantize()"
    if got is None and expected is not None and expected.shape == saved.shape:
        if expected.is_floating_point() and not saved.is_floating_point():
            got, fix = f"{saved.dtype}", f"use the weights as they were trained, such as {expected.dtype}"
        elif saved.is_complex() and not expected.is_complex():
            got, fix = f"{saved.dtype}", f"save it as {expected.dtype}"
        elif _is_expanded(saved) and not _is_expanded(expected):
            got = f"{tuple(saved.shape)} stored in {saved.untyped_storage().nbytes()} bytes"
            fix = "save a tensor that stores all its values, with tensor.contiguous()"
    if got is not None:
        raise ModebridgeError(f"Expected '{name}' to be a tensor of weights, but got {got}; {fix}.")


def check_runs(net: nn.Module, *, values: bool = True) -> None:
    """Raise an error for torch's wrapper that takes no other weights, and for a network without values, if needed."""
    if isinstance(net, nn.DataParallel):
        raise ModebridgeError("Expected a network that runs with other weights, but got DataParallel; pass net.module.")
    if values and any(tensor.is_meta for tensor in net.state_dict().values() if isinstance(tensor, Tensor)):
        raise ModebridgeError("Expected a network with values, but it is on the meta device; build it on another.")


def unusual(tensor: Tensor) -> str | None:
    """Describe a tensor that is not a plain dense one; None for a plain one.

    >>> unusual(torch.eye(2).to_sparse()), unusual(torch.eye(2))
    ('a sparse tensor', None)
    """
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_quantized:
        return "a quantized tensor"
    if tensor.layout != torch.strided:
        return "a sparse tensor" if "sparse" in str(tensor.layout) else f"a tensor of layout {tensor.layout}"
    if tensor.device.type == "meta":
        return "a tensor without values (on the meta device)"
    return None


def _is_expanded(tensor: Tensor) -> bool:
    """Whether a tensor repeats some of its stored values, as `expand` does."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


WIDTH = 16
"""Number of input channels from which gradients are correct on every CPU: the floats in an AVX-512 register."""


def is_narrow(layer: nn.Module) -> bool:
    """Whether a layer is affected by the bug that `correct_conv_gradients` works around.

    >>> is_narrow(nn.Conv2d(3, 16, 1, stride=2)), is_narrow(nn.Conv2d(16, 16, 1, stride=2))
    (True, False)
    """
    if not isinstance(layer, nn.Conv2d) or layer.groups != 1 or layer.kernel_size != (1, 1) or max(layer.stride) == 1:
        return False
    return layer.in_channels < WIDTH and (layer.padding == "valid" or not any(layer.padding))


def correct_conv_gradients(net: nn.Module) -> None:
    """Change a network's layers in place so that its gradients are correct; most networks are left as they are.

    On CPUs oneDNN (3.12, in torch 2.13) writes beyond the end of its memory in the backward pass of a 1x1 convolution
    with a stride, if images or weights are in channels-last format and have fewer channels than a register has floats
    (8 with AVX2, 16 with AVX-512): the process crashes some steps later, or continues with wrong numbers. Minimal case:
    the gradients of `nn.Conv2d(3, 16, 1, stride=2)` on channels-last images of 8 x 8. Such a convolution equals one
    without a stride on a subsampled image, which works correctly.
    """
    for layer in filter(is_narrow, net.modules()):
        assert isinstance(layer, nn.Conv2d)
        layer.register_forward_pre_hook(partial(_subsample, layer.stride))
        layer.stride = (1, 1)


def exportable(net: nn.Module) -> nn.Module:
    """Replace layers of a network in place that exporters refuse by equal ones; returns the network.

    torchvision's `transforms.Normalize` asks `(std == 0).any()`, a branch on values; that of `transforms.v2` does not.
    """
    for name, layer in [*net.named_modules()]:
        kind = type(layer)
        if name and (kind.__module__, kind.__name__) == ("torchvision.transforms.transforms", "Normalize"):
            from torchvision.transforms import v2

            net.set_submodule(name, v2.Normalize(layer.mean, layer.std))
    return net


def _subsample(stride: tuple[int, ...], layer: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    return args[0][..., :: stride[0], :: stride[1]]
