"""Whether networks fit their training data, which decides what a bridge on them learns best from."""

from __future__ import annotations

import torch
from torch import nn

from modebridge import seeds
from modebridge.batches import each
from modebridge.modes import Mode
from modebridge.nets import run, skeleton
from modebridge.training.engine import Engine
from modebridge.types import Batches

__all__ = ["fits"]

FITTED = 0.9
"""The least share of right predictions on training data for a network that fits it.

Measured were networks with 99 % and more, on which labels teach a bridge nothing, and with 60 to 75 %, on which they
teach it most (docs/frontier.md).
"""
IMAGES = 1000
"""How many training images to look at, rounded up to whole batches."""


@torch.no_grad()
def fits(net: nn.Module, mode: Mode, train_data: Batches, engine: Engine) -> bool:
    """Whether a mode predicts nearly all labels of its training data, in the first batches as they are drawn."""
    base, device = skeleton(net).to(engine.device), engine.device
    state = mode.to(device)
    right, seen = 0.0, 0
    # Networks that draw random numbers in evaluation mode must not disturb the caller's generator.
    with seeds.borrowed(0, device), engine.precision():
        for inputs, labels in train_data:
            logits = run(base, state.params, state.buffers, each(lambda tensor: tensor.to(device), inputs))
            right += float((logits.argmax(dim=1) == labels.to(device)).sum())
            seen += len(labels)
            if seen >= IMAGES:
                break
    share = engine.processes.mean_score({"right": right / max(seen, 1)}, seen)["right"]  # the same in all processes
    return share >= FITTED
