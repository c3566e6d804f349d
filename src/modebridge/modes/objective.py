"""The loss of a mode: plain cross entropy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.batches import flatten, unflatten
from modebridge.modes.mode import Mode
from modebridge.nets import frozen_copy, run
from modebridge.types import Batch, Batches, Draw, Objective, Prepared, Program, State, States

__all__ = ["ModeObjective", "error_rate"]

MEMBER = "mode"


class ModeObjective(Objective[Mode]):
    """Train one network on labels with the mean cross entropy per batch.

    Args:
        net: the architecture.
        mode: the initial weights.
        trainable: names of the parameters to train, the others are frozen; None trains all.
        synced: converts batch norm to use the batches of all processes.
    """

    def __init__(
        self,
        net: nn.Module,
        mode: Mode,
        trainable: Collection[str] | None = None,
        *,
        synced: Callable[[nn.Module], nn.Module] = lambda module: module,
    ) -> None:
        self._train = synced(frozen_copy(net, training=True))
        self._eval = frozen_copy(net)
        self._mode = mode
        self._trainable = trainable
        # Stored so that copies of this objective (`on`) share one program, which is compiled once.
        self._program: Program = self._loss

    def on(self, mode: Mode, trainable: Collection[str] | None = None) -> Self:
        """The same objective with other initial weights; it shares the compiled program."""
        other = copy.copy(self)
        other._mode, other._trainable = mode, trainable
        return other

    def start(self) -> States:
        """The weights of the mode."""
        learns = self._mode.params if self._trainable is None else self._trainable
        return {MEMBER: State.split(self._mode.params, self._mode.buffers, learns)}

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """The batch unchanged: augmentation is part of the data."""
        return {MEMBER: {**flatten(batch[0]), "labels": batch[1]}}

    def program(self, member: str) -> Program:
        """Cross entropy on the labels."""
        return self._program

    def _loss(self, state: State, prepared: Prepared) -> Tensor:
        logits = run(self._train, state.all_params, state.buffers, unflatten(prepared))
        return F.cross_entropy(logits, prepared["labels"])

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The error rate."""
        return {MEMBER: error_rate(self._eval, states[MEMBER], batches)}

    def result(self, states: States) -> Mode:
        """The trained mode."""
        return Mode(states[MEMBER].all_params, states[MEMBER].buffers)


@torch.no_grad()
def error_rate(net: nn.Module, state: State, batches: Batches) -> float:
    """The share of images whose predicted class is not their label."""
    wrong, seen = 0, 0
    for images, labels in batches:
        logits = run(net, state.all_params, state.buffers, images)
        wrong += int((logits.argmax(-1) != labels).sum())
        seen += len(labels)
    return wrong / seen if seen else math.nan
