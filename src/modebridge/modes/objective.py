"""The loss of a mode: plain cross entropy."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.batches import inputs_in, named, rows_of
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

    def start(self, mode: Mode, trainable: Collection[str] | None = None) -> States:
        """Begin from the weights of `mode`; those named learn, the others stay as they are. None trains all."""
        learns = trainable if trainable is not None else mode.params
        params = {name: tensor for name, tensor in mode.params.items() if name in learns}
        frozen = {name: tensor for name, tensor in mode.params.items() if name not in learns}
        return {MEMBER: State(params, mode.buffers, frozen)}

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """Nothing: augmentation belongs to the data."""
        return {}

    whole = False

    def part(self, batch: Batch, draw: Draw, rows: slice) -> tuple[Batch, Draw]:
        """The rows alone."""
        return rows_of(batch, rows), draw

    ahead = False

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """The batch as it is."""
        return {MEMBER: {**named(batch[0]), "labels": batch[1]}}

    def program(self, member: str) -> Program:
        """Cross entropy on the labels."""
        return self._loss

    def _loss(self, state: State, prepared: Prepared) -> Tensor:
        logits = run(self._train, {**state.params, **state.frozen}, state.buffers, inputs_in(prepared))
        return F.cross_entropy(logits, prepared["labels"])

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The share of wrong answers."""
        state = states[MEMBER]
        return {MEMBER: error_rate(self._eval, state, batches)}

    def result(self, states: States) -> Mode:
        """The trained mode."""
        state = states[MEMBER]
        return Mode({**state.params, **state.frozen}, state.buffers)


@torch.no_grad()
def error_rate(net: nn.Module, state: State, batches: Batches) -> float:
    """The share of images whose top class is not their label."""
    wrong, seen = 0, 0
    for images, labels in batches:
        logits = run(net, {**state.params, **state.frozen}, state.buffers, images)
        wrong += int((logits.argmax(-1) != labels).sum())
        seen += len(labels)
    return wrong / seen if seen else math.nan
