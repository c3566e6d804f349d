"""Checks of a checkpoint's tensors: errors before one would become wrong weights."""

from __future__ import annotations

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError

__all__ = ["check_weights", "unusual"]


def check_weights(name: str, saved: Tensor, expected: Tensor | None) -> None:
    """Raise an error for a tensor that `copy_` cannot read, or would turn into wrong weights.

    Args:
        name: name of the tensor in the error.
        saved: the tensor of a checkpoint.
        expected: the tensor of the network, if it has one of this name.
    """
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
