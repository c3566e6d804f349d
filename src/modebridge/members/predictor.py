"""Members ready to predict: from a batch, and the outputs of networks on it, to logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from modebridge.bridges import Bridge
from modebridge.ensembles import Mean, features_of
from modebridge.members.artefact import key_of
from modebridge.modes import Mode
from modebridge.trees import fingerprint
from modebridge.types import Inputs

__all__ = ["BridgePredictor", "NetworkPredictor", "Outputs", "Predictor"]

Outputs: TypeAlias = Mapping[str, tuple[Tensor, Mapping[str, Tensor]]]
"""The logits and the features by tap of every network that ran on a batch, by network name."""


class Predictor(ABC):
    """A member with its weights loaded, ready to predict.

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
        """A hash of the weights, which identifies its logits."""

    @abstractmethod
    def heads(self, inputs: Inputs, outputs: Outputs) -> list[Tensor]:
        """The logits (B, K) of each of its heads; every head counts once in the mean."""

    def to(self, device: torch.device | str) -> Predictor:
        """The same on another device."""
        return self

    def module(self, mean: Mean = "probability") -> nn.Module | str:
        """A module to export it alone, with logits (B, K) whose softmax is the mean of its heads; or why there is none.

        Networks of the recipe's architecture and bridges need none: they are exported as parts of an ensemble.

        Args:
            mean: how heads are averaged.
        """
        return "this kind of member cannot be exported"


class NetworkPredictor(Predictor):
    """A complete network."""

    def __init__(self, name: str, mode: Mode) -> None:
        super().__init__({name: mode})
        self.name, self.mode = name, mode

    @property
    def id(self) -> str:
        """The hash of the mode."""
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
        """The logits of each of the bridge's heads."""
        return self.bridge.head_logits(*features_of(self.bridge, list(self.networks), outputs))

    def to(self, device: torch.device | str) -> BridgePredictor:
        """The same on another device."""
        return BridgePredictor(self.bridge.to(device), self.networks)
