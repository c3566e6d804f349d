"""Function matching, shared by bridges and students: mixed images, and frozen networks that run once per batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.batches import map_inputs
from modebridge.bridges.loss import mix
from modebridge.cutmix import draw_shares, label_shares, pixel_shares
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import Tapped
from modebridge.types import Batches, Draw, Inputs, Objective, Program, States

__all__ = ["Compile", "FanOut", "FrozenNetworks", "MatchingObjective", "Outputs", "in_turn"]

T = TypeVar("T")

Outputs: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""Output of a frozen network: logits, and features by tap."""

Compile: TypeAlias = Callable[[Any], Any]
"""Compiles a frozen network's forward pass, if the engine supports it."""

FanOut: TypeAlias = Callable[[Sequence[Callable[[], Outputs]]], list[Outputs]]
"""Runs independent jobs in parallel, if the engine supports it."""


def in_turn(jobs: Sequence[Callable[[], Outputs]]) -> list[Outputs]:
    """Run jobs one after another."""
    return [job() for job in jobs]


class MatchingObjective(Objective[T]):
    """Train networks to match the predictions of frozen ones on mixed images.

    Args:
        mixup: alpha of the Beta distribution of the shares; 0 turns mixup off.
        cutmix: alpha of the Beta distribution of the box areas; 0 turns CutMix off. With both, each batch uses one.
    """

    def __init__(self, mixup: float, cutmix: float = 0.0) -> None:
        for name, alpha in (("mixup", mixup), ("cutmix", cutmix)):
            if not alpha >= 0:
                raise ModebridgeError(f"Expected {name} to be at least 0, but got {alpha}; 0 turns it off.")
        self._mixup, self._cutmix = mixup, cutmix
        # By member, filled by subclasses: the loss in training, and the loss of the same networks in evaluation mode.
        self._programs: dict[str, Program] = {}
        self._measures: dict[str, Program] = {}

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """A share (or box) per sample from Beta(alpha, alpha), not folded to >= 0.5, and one permutation per batch."""
        if not (self._mixup or self._cutmix):
            return {}
        seed = int(torch.randint(2**62, (), generator=generator))
        shares = draw_shares(size, self._mixup, self._cutmix, seed)
        return {**shares, "partner": torch.randperm(size, generator=generator)}

    def mixed(self, inputs: Inputs, draw: Draw) -> Inputs:
        """The images, mixed according to a draw."""
        return map_inputs(partial(_mixed, draw, pixel_shares(draw, inputs)), inputs) if "share" in draw else inputs

    def mixed_labels(self, labels: Tensor, classes: int, dtype: torch.dtype, draw: Draw, images: Inputs) -> Tensor:
        """The labels as probabilities (B, K), mixed like the images."""
        target = F.one_hot(labels, classes).to(dtype)
        return _mixed(draw, label_shares(draw, images, dtype), target) if "share" in draw else target

    def program(self, member: str) -> Program:
        """The loss of a member on the mixed batch."""
        return self._programs[member]

    @torch.no_grad()
    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """The mean loss of each member on unmixed images."""
        totals = dict.fromkeys(self._measures, 0.0)
        seen = 0
        for batch in batches:
            prepared = self.prepare(batch, {})
            for name, measure in self._measures.items():
                totals[name] += float(measure(states[name], prepared[name])) * len(batch[1])
            seen += len(batch[1])
        return {name: total / seen if seen else math.nan for name, total in totals.items()}


class FrozenNetworks:
    """Frozen networks of one architecture; each runs once per batch.

    Args:
        net: the architecture, on the device.
        modes: their weights.
        taps: submodules whose features are read.
        compiled: compiles the forward pass, if the engine supports it.
        fan_out: runs the networks in parallel, if the engine supports it.
    """

    def __init__(
        self,
        net: nn.Module,
        modes: Sequence[Mode],
        taps: Sequence[str] = (),
        *,
        compiled: Compile = lambda function: function,
        fan_out: FanOut = in_turn,
    ) -> None:
        tapped = Tapped(net, taps)
        device = next((tensor.device for tensor in net.state_dict().values()), torch.device("cpu"))
        self._states = {mode.id: tapped.state_of(mode.to(device).state) for mode in modes}
        self._forward = compiled(tapped.run)
        self._fan_out = fan_out

    def __call__(self, images: Inputs) -> Mapping[str, Outputs]:
        """Logits and features of every network, by mode id."""
        jobs = [partial(self._forward, state, images) for state in self._states.values()]
        return dict(zip(self._states, self._fan_out(jobs), strict=True))


def _mixed(draw: Draw, share: Tensor, tensor: Tensor) -> Tensor:
    return mix(tensor, share.to(tensor), draw["partner"].to(tensor.device))
