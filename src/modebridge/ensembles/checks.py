"""What an ensemble says of inputs that it cannot take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from modebridge.batches import IMAGES, check_type, label_key
from modebridge.errors import ModebridgeError, advice_for, first_line
from modebridge.nets.quirks import FAILED
from modebridge.types import Inputs

TOKENS = (torch.int64, torch.int32)


def check_inputs(given: Inputs, tokens: bool, what: str) -> Inputs:
    """The inputs without labels; raises an error unless they are tensors of scaled images. Values are not read."""
    if isinstance(given, Tensor):
        if not (tokens and given.dtype in TOKENS):
            check_type(given, IMAGES, what)
        return given
    if not isinstance(given, Mapping):
        raise ModebridgeError(
            f"Expected the images {what} to be a tensor or a dict of tensors, but got {type(given).__name__}; "
            "convert arrays with torch.from_numpy, pass the images of a pair alone, and a loader to `evaluate`."
        )
    given = {name: tensor for name, tensor in given.items() if name != label_key(given)}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise ModebridgeError(
                f"Expected '{name}' {what} to be a tensor, but got {type(tensor).__name__}; omit or convert it."
            )
        check_type(tensor, str(name), what)
    if not given:
        raise ModebridgeError(
            f"Expected the inputs {what} to hold images, but got none; pass a tensor, or several by name."
        )
    return given


@contextmanager
def refusing(given: Inputs, ensemble: nn.Module, what: str) -> Iterator[None]:
    """Explain why the networks of an ensemble failed on their inputs, unless these are not the cause."""
    try:
        yield
    except FAILED as error:
        if (refused := _refusal(error, given, ensemble, what)) is None:
            raise
        raise refused from error


def _refusal(error: Exception, given: Inputs, ensemble: nn.Module, what: str) -> ModebridgeError | None:
    if isinstance(error, ModebridgeError | torch.OutOfMemoryError) or "CUDA error" in str(error):
        return None
    tensors = {IMAGES: given} if isinstance(given, Tensor) else given
    weight = next((parameter for parameter in ensemble.parameters() if parameter.is_floating_point()), None)
    for name, tensor in tensors.items():
        if weight is None:
            break
        if tensor.device != weight.device:
            return ModebridgeError(
                f"Expected the {name} {what} to be on {weight.device}, where the ensemble is, but got "
                f"{tensor.device}; move them with {name}.to('{weight.device}'), or move the ensemble."
            )
        if tensor.is_floating_point() and tensor.dtype != weight.dtype:
            return ModebridgeError(
                f"Expected the {name} {what} to be {weight.dtype}, as the ensemble's weights are, but got "
                f"{tensor.dtype}; convert them with {name}.to({weight.dtype})."
            )
    fix = advice_for(error, "check their shape and dtype (pass a single image as images[None])")
    got = f"{shapes(given)} and '{first_line(error)}'"
    return ModebridgeError(f"Expected the ensemble to run on the images {what}, but got {got}; {fix}.")


def shapes(given: Inputs) -> str:
    if isinstance(given, Tensor):
        return f"{tuple(given.shape)} of {given.dtype}"
    return ", ".join(f"{name} {shapes(tensor)}" for name, tensor in given.items())
