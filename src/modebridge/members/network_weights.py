"""Shared code of artefacts that are the weights of one trained network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from torch import nn

from modebridge import seeds
from modebridge.members.artefact import ArtefactData, Parents, TrainedWeights
from modebridge.members.setting import Setting
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig, fit_modes

__all__ = ["NetworkWeights"]


class NetworkWeights(TrainedWeights):
    """The weights of a network that learns labels, by default from a random start."""

    @property
    @abstractmethod
    def purpose(self) -> tuple[str | int, ...]:
        """The names that its seeds are drawn for: of its start, its batches and its training."""

    def network(self, setting: Setting) -> nn.Module:
        """The network to train."""
        return setting.network.build(seeds.generator(setting.seed, *self.purpose))

    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings, as set in the recipe for modes."""
        return recipe.training("mode")

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Data, network, seed and training."""
        return {
            "data": setting.data.fed_as,
            "net": setting.network.key,
            "seed": setting.seed_of(*self.purpose),
            "training": self.training(setting.recipe).key,
        }

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Train them."""
        trained = fit_modes(
            [artefact.network(setting) for artefact in group],
            [setting.data.train(*artefact.purpose) for artefact in group],
            config=config,
            seeds=[setting.seed_of(*artefact.purpose) for artefact in group],
            valid=setting.data.valid(),
        )
        return {artefact.name: ArtefactData(mode.state) for artefact, mode in zip(group, trained, strict=True)}
