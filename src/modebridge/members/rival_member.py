"""Shared code of members that are ensembles inside one network: weights, prediction, cost."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from modebridge import seeds
from modebridge.baselines import MeanOfMembers, Rival
from modebridge.ensembles import Mean
from modebridge.errors import ModebridgeError
from modebridge.members.artefact import Artefact, Tensors, key_of
from modebridge.members.member import Numbered
from modebridge.members.network_weights import NetworkWeights
from modebridge.members.predictor import Outputs, Predictor
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.nets import ResNetSpec, call
from modebridge.recipes import Recipe
from modebridge.scoring import MemberCost
from modebridge.types import Inputs

__all__ = ["RivalMember", "RivalPredictor", "RivalWeights", "paper_spec"]


@dataclass(frozen=True)
class RivalWeights(NetworkWeights):
    """The weights of a rival's network, with the same training as a mode."""

    member: RivalMember
    folder = "rivals"
    stage = "rivals"

    @property
    def name(self) -> str:
        """The name of the member."""
        return self.member.name

    @property
    def purpose(self) -> tuple[str | int, ...]:
        """A rival with its name."""
        return "rival", self.name

    def network(self, setting: Setting) -> nn.Module:
        """The network of the method."""
        return self.member.network(setting, seeds.generator(setting.seed, *self.purpose))

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Those of a mode, and the method."""
        return {**super().ingredients(setting), "method": self.member.settings}

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        """One forward and one backward pass for each on all rows of a batch; a backward pass counts as two forward."""
        return 3 * sum(artefact.member.trained_flops(setting) for artefact in group)


class RivalMember(Numbered):
    """An ensemble inside one network, as one member with M heads."""

    alone = True

    @property
    def title(self) -> str:
        """With the number of members, and the width if it differs from the recipe's network."""
        members, *width = self.numbers
        return f"{self.family}, {members} members" + "".join(f", width x{multiple}" for multiple in width)

    @abstractmethod
    def network(self, setting: Setting, generator: torch.Generator) -> nn.Module:
        """The network to train, with weights drawn from the generator."""

    def ready(self, setting: Setting, network: nn.Module) -> Rival:
        """The trained network for prediction; by default the same."""
        assert isinstance(network, Rival)
        return network

    @property
    def settings(self) -> str:
        """All settings of the method that affect its training."""
        return str(self)

    @property
    def weights(self) -> RivalWeights:
        """The artefact that it is loaded from."""
        return RivalWeights(self)

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights."""
        return (self.weights,)

    def load(self, setting: Setting, tensors: Mapping[str, Tensors]) -> RivalPredictor:
        """The network with its weights."""
        empty = self.network(setting, seeds.generator(setting.seed, "net"))
        mode = Mode.from_state_dict(empty, tensors[self.weights.place])
        rival = self.ready(setting, mode.load(empty)).eval().requires_grad_(False)
        return RivalPredictor(rival, key_of(mode.id, self.name, setting.seed))

    def cost(self, setting: Setting) -> MemberCost:
        """The cost of all members for one image."""
        counted = setting.cost_of(self.name, lambda: self.whole(setting))
        return MemberCost(counted.flops, counted.params)

    def whole(self, setting: Setting) -> Rival:
        """The network of all members."""
        return self.ready(setting, self.network(setting, seeds.generator(setting.seed, "net")))

    def trained_flops(self, setting: Setting) -> float:
        """Multiply-adds of a forward pass in training, per image of a batch."""
        return self.cost(setting).flops

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """One with the default settings."""
        return [cls()]


class RivalPredictor(Predictor):
    """A network of M members, each a head.

    Args:
        rival: the network with its weights, in evaluation mode.
        id: a hash of the weights, method and seed.
    """

    def __init__(self, rival: Rival, id: str) -> None:
        super().__init__()
        self._rival = rival
        self._id = id

    @property
    def id(self) -> str:
        """A hash of weights, method and seed."""
        return self._id

    def heads(self, inputs: Inputs, outputs: Outputs) -> list[Tensor]:
        """The logits of every member."""
        return list(torch.unflatten(call(self._rival, inputs), 0, (self._rival.members, -1)))

    def to(self, device: torch.device | str) -> RivalPredictor:
        """The same on another device."""
        self._rival.to(device)
        return self

    def module(self, mean: Mean = "probability") -> nn.Module:
        """The log of the members' mean probability."""
        return MeanOfMembers(self._rival, mean)


def paper_spec(setting: Setting, member: RivalMember) -> ResNetSpec:
    """The spec of one of the paper's networks, whose widths are known; raises an error for other networks."""
    spec = setting.network.spec
    if spec is None:
        raise ModebridgeError(
            f"Expected one of the paper's networks for {member.name}, because it changes widths, but got "
            f"'{setting.network.reference}'; use the method without a width."
        )
    return spec
