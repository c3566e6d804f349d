"""Members ready to predict: from a batch, and what networks gave on it, to logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge
from modebridge.members.artefact import key_of
from modebridge.modes import Mode
from modebridge.nets import Mean
from modebridge.trees import fingerprint
from modebridge.types import Inputs

__all__ = ["BridgePredictor", "NetworkPredictor", "Outputs", "Predictor"]

Outputs: TypeAlias = Mapping[str, tuple[Tensor, Mapping[str, Tensor]]]
"""The logits and the features by tap of every network that ran on a batch, by the network's name."""


class Predictor(ABC):
    """A member ready to predict, its weights loaded.

    Args:
        networks: the networks that must run for it, by name; each runs once per batch, however many members use it.
        taps: the submodules whose features it reads.
    """

    def __init__(self, networks: Mapping[str, Mode] | None = None, taps: Sequence[str] = ()) -> None:
        self.networks = dict(networks or {})
        self.taps = tuple(taps)

    @property
    @abstractmethod
    def id(self) -> str:
        """A hash of the weights, by which its logits are known to be its own."""

    @abstractmethod
    def heads(self, inputs: Inputs, outputs: Outputs) -> list[Tensor]:
        """The logits (B, K) of each of its heads; every head is one voice in the mean."""

    def to(self, device: torch.device | str) -> Predictor:
        """The same on another device."""
        return self

    def module(self, mean: Mean = "probability") -> nn.Module | str:
        """A module of logits (B, K) whose softmax is the mean of its heads', to be exported alone; or why it has none.

        Networks of the recipe's architecture and bridges need none: they are parts of the ensemble that is exported.

        Args:
            mean: how heads become one.
        """
        return "this kind of member cannot be exported"


class NetworkPredictor(Predictor):
    """A whole network."""

    def __init__(self, name: str, mode: Mode) -> None:
        super().__init__({name: mode})
        self.name, self.mode = name, mode

    @property
    def id(self) -> str:
        """That of the mode."""
        return self.mode.id

    def heads(self, inputs: Inputs, outputs: Outputs) -> list[Tensor]:
        """The network's logits."""
        return [outputs[self.name][0]]


class BridgePredictor(Predictor):
    """A bridge on the features of one or two networks."""

    def __init__(self, bridge: Bridge, reads: Mapping[str, Mode]) -> None:
        super().__init__(reads, bridge.taps)
        self.bridge = bridge

    @property
    def id(self) -> str:
        """A hash of its weights and of what it reads."""
        return key_of(fingerprint(self.bridge.state_dict()), self.bridge.reads)

    def heads(self, inputs: Inputs, outputs: Outputs) -> list[Tensor]:
        """The bridge's logits, of each of its heads."""
        names = list(self.networks)
        return self.bridge.voices(*(outputs[names[k]][1][tap] for k, tap in self.bridge.places))

    def to(self, device: torch.device | str) -> BridgePredictor:
        """The same on another device."""
        return BridgePredictor(self.bridge.to(device), self.networks)
