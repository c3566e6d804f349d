"""Checks of an ensemble's inputs: errors before it would misread them, and clear errors if it fails on them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from modebridge.batches import IMAGES, check_type
from modebridge.errors import ModebridgeError, first_line
from modebridge.types import Inputs

__all__ = ["check_inputs", "check_logits", "refusal", "takes_tokens"]

TOKENS = (torch.int64, torch.int32)


def takes_tokens(net: nn.Module) -> bool:
    """Whether a network has embeddings, so that integers may be its only input."""
    return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in net.modules())


def check_inputs(given: object, tokens: bool, what: str) -> Inputs:
    """Raise an error for inputs that are not tensors, and for unscaled images; values are not read.

    Args:
        given: images, or tensors by name.
        tokens: whether the network takes integers as its only input.
        what: name of the source in errors.
    """
    if isinstance(given, Tensor):
        if not (tokens and given.dtype in TOKENS):
            check_type(given, IMAGES, what)
        return given
    if not isinstance(given, Mapping):
        raise ModebridgeError(
            f"Expected the images of {what} to be a tensor or a dict of tensors, but got {type(given).__name__}; "
            "convert arrays with torch.from_numpy, and stack lists of images with torch.stack."
        )
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise ModebridgeError(
                f"Expected '{name}' of {what} to be a tensor, but got {type(tensor).__name__}; omit or convert it."
            )
        check_type(tensor, str(name), what)
    if not given:
        raise ModebridgeError(f"Expected {what} to hold images, but got none; pass a tensor, or several by name.")
    return given


def check_logits(logits: Tensor, given: Inputs) -> Tensor:
    """Raise an error unless logits have one row per image; some networks accept an image without a batch axis."""
    if logits.dim() != 2:
        raise ModebridgeError(
            f"Expected the network's logits to be (batch, classes), but got {tuple(logits.shape)} for {_shapes(given)};"
            " pass a batch, or images[None] for a single image."
        )
    return logits


def refusal(error: Exception, given: Inputs, ensemble: nn.Module, what: str) -> ModebridgeError | None:
    """An error that explains why the networks failed on their inputs; None if the inputs are not the cause.

    Args:
        error: the exception they raised.
        given: the inputs.
        ensemble: the networks.
        what: name of the source in errors.
    """
    if isinstance(error, ModebridgeError | torch.OutOfMemoryError) or "CUDA error" in str(error):
        return None
    tensors = {IMAGES: given} if isinstance(given, Tensor) else given
    weight = next((parameter for parameter in ensemble.parameters() if parameter.is_floating_point()), None)
    for name, tensor in tensors.items():
        if weight is None:
            break
        if tensor.device != weight.device:
            return ModebridgeError(
                f"Expected the {name} of {what} to be on {weight.device}, where the ensemble is, but got "
                f"{tensor.device}; move them with {name}.to('{weight.device}'), or move the ensemble."
            )
        if tensor.is_floating_point() and tensor.dtype != weight.dtype:
            return ModebridgeError(
                f"Expected the {name} of {what} to be {weight.dtype}, as the ensemble's weights are, but got "
                f"{tensor.dtype}; convert them with {name}.to({weight.dtype})."
            )
    return ModebridgeError(
        f"Expected the ensemble to run on the images of {what}, but got {_shapes(given)} and '{first_line(error)}'; "
        "check their shape and dtype (pass a single image as images[None])."
    )


def _shapes(given: Inputs) -> str:
    if isinstance(given, Tensor):
        return f"{tuple(given.shape)} of {given.dtype}"
    return ", ".join(f"{name} {_shapes(tensor)}" for name, tensor in given.items())
