"""The loss of a mode: plain cross entropy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.modes.mode import Mode
from modebridge.nets import run, skeleton
from modebridge.types import Batch, Batches, Draw, Prepared, Program, State, States

__all__ = ["ModeObjective", "error_rate"]

MEMBER = "mode"


class ModeObjective:
    """Train one network on labels: the mean cross entropy of a batch.

    Args:
        net: gives the architecture.
    """

    def __init__(self, net: nn.Module) -> None:
        self._train = skeleton(net, training=True)
        self._eval = skeleton(net)

    def start(self, mode: Mode) -> States:
        """Begin from the weights of `mode`."""
        return {MEMBER: State(mode.params, mode.buffers)}

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """Nothing: augmentation belongs to the data."""
        return {}

    ahead = False

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """The batch as it is."""
        return {MEMBER: {"images": batch[0], "labels": batch[1]}}

    def program(self, member: str) -> Program:
        """Cross entropy on the labels."""
        return self._loss

    def _loss(self, state: State, prepared: Prepared) -> Tensor:
        logits = run(self._train, state.params, state.buffers, prepared["images"])
        return F.cross_entropy(logits, prepared["labels"])

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The share of wrong answers."""
        state = states[MEMBER]
        return {MEMBER: error_rate(self._eval, state, batches)}

    def result(self, states: States) -> Mode:
        """The trained mode."""
        return Mode(states[MEMBER].params, states[MEMBER].buffers)


@torch.no_grad()
def error_rate(net: nn.Module, state: State, batches: Batches) -> float:
    """The share of images whose top class is not their label."""
    wrong, seen = 0, 0
    for images, labels in batches:
        wrong += int((run(net, state.params, state.buffers, images).argmax(-1) != labels).sum())
        seen += len(labels)
    return wrong / max(seen, 1)
