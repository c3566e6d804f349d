"""How well networks fit their training data, which decides what a bridge on them learns best from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modebridge import seeds
from modebridge.batches import go_to_epoch
from modebridge.modes import Mode
from modebridge.nets import frozen_copy, run
from modebridge.training.engine import Engine
from modebridge.types import Batches

__all__ = ["Fit", "training_accuracy"]

LABELS_BELOW = 0.95
"""Below this training accuracy a bridge learns from labels too.

Measured (docs/frontier.md): at 70 and 89 % a head on labels gains much, above 99 % little, or it costs.
"""
CUTMIX_FROM = 0.8
"""From this training accuracy on heads are trained with CutMix: at 70 % it gains nothing, or costs."""
IMAGES = 1000
"""How many training images to look at, rounded up to whole batches."""


@dataclass(frozen=True)
class Fit:
    """How well networks predict their training labels.

    Args:
        accuracy: share of right predictions; of several networks, the lowest.
        images: how many were looked at.
        classes: K.
    """

    accuracy: float
    images: int
    classes: int

    @property
    def needs_labels(self) -> bool:
        """Whether labels would teach a bridge much.

        Not if they are predicted no better than by chance (within three standard errors): then they are probably no
        real labels, which imitation does not need.

        >>> [Fit(accuracy, 1000, 10).needs_labels for accuracy in (0.1, 0.2, 0.94, 0.95)]
        [False, True, True, False]
        """
        chance = 1 / max(self.classes, 1)
        spread = math.sqrt(chance * (1 - chance) / max(self.images, 1))
        return chance + 3 * spread < self.accuracy < LABELS_BELOW

    @property
    def suits_cutmix(self) -> bool:
        """Whether strongly mixed images show where networks differ better than plain ones."""
        return self.accuracy >= CUTMIX_FROM


@torch.no_grad()
def training_accuracy(net: nn.Module, modes: Sequence[Mode], train_data: Batches, classes: int, engine: Engine) -> Fit:
    """Run modes on the first batches of their training data, as drawn in epoch 0, augmentation included.

    Args:
        net: the network.
        modes: the modes that a bridge reads.
        train_data: yields (images, labels).
        classes: K.
        engine: device and precision.
    """
    base, states = frozen_copy(net).to(engine.device), [mode.to(engine.device) for mode in modes]
    right, seen = [0] * len(modes), 0
    go_to_epoch(train_data, 0)
    # Networks that draw random numbers in evaluation mode must not disturb the caller's generator.
    with seeds.borrowed(0, engine.device), engine.precision():
        for batch in train_data:
            (inputs, labels), _ = engine.moved(batch, {})
            seen += len(labels)
            for k, state in enumerate(states):
                right[k] += int((run(base, state.params, state.buffers, inputs).argmax(dim=1) == labels).sum())
            if seen >= IMAGES:
                break
    return Fit(min(right) / max(seen, 1), seen, classes)
