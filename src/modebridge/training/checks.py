"""What can be known before training starts is checked before training starts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from modebridge import seeds
from modebridge.batches import Checked, check_labels, each, first_batch, named, shapes_of
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import run, skeleton
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.types import Batches, Inputs

__all__ = ["check_batches", "classes_of", "held_out", "trainable"]


def check_batches(net: nn.Module, mode: Mode, batches: Batches, what: str) -> Checked:
    """Look at the data before training: every batch of a list, the first of a loader.

    Returns:
        The same batches, the others checked as they are drawn.
    """
    images, labels = first_batch(batches, what)
    classes = classes_of(net, mode, images, what)
    check_labels(labels, classes, what)
    checked = Checked(batches, what, classes)
    if isinstance(batches, Sequence):
        for _ in checked:
            pass
    return checked


def held_out(net: nn.Module, mode: Mode, valid: Batches | None, config: TrainConfig, engine: Engine) -> Batches | None:
    """The validation data, looked at before training, where it will be used at all."""
    if valid is None or config.keep != "best":
        return None
    return engine.feed(check_batches(net, mode, valid, "valid"))


def trainable(net: nn.Module) -> set[str]:
    """The names of the parameters that learn, as `requires_grad` says."""
    names = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    if not names:
        raise ModebridgeError(
            f"Expected {type(net).__name__} to have parameters that learn, but got requires_grad=False for all; "
            "call requires_grad_(True) on it, or on the layers that are to learn."
        )
    return names


@torch.no_grad()
def classes_of(net: nn.Module, mode: Mode, images: Inputs, what: str) -> int:
    """K: how many logits the network gives, from one image; refuses images that it cannot take."""
    where = next(tensor.device for tensor in [*mode.params.values(), *named(images).values()])
    first = each(lambda tensor: tensor[:1].to(where), images)
    try:
        # A network that draws in evaluation mode too must not disturb the caller's generator by being looked at.
        with seeds.borrowed(0):
            logits = run(skeleton(net).to(where), mode.params, mode.buffers, first)
    except (RuntimeError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise ModebridgeError(
            f"Expected {type(net).__name__} to run on the images of {what}, but got {shapes_of(images)} and "
            f"'{reason}'; check their shape and type."
        ) from error
    if logits.dim() != 2:
        raise ModebridgeError(
            f"Expected the network's logits to be (batch, classes), but got {tuple(logits.shape)}; give a classifier."
        )
    return logits.shape[1]
