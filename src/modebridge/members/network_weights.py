"""Shared code of artefacts that are the weights of one trained network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Self

from torch import nn

from modebridge import seeds
from modebridge.members.artefact import ArtefactData, Making, TrainedWeights
from modebridge.members.context import Context
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig, fit_modes

__all__ = ["NetworkWeights"]


class NetworkWeights(TrainedWeights):
    """The weights of a network that learns labels, by default from a random start."""

    @property
    @abstractmethod
    def purpose(self) -> tuple[str | int, ...]:
        """The names that its seeds are drawn for: of its start, its batches and its training."""

    def network(self, context: Context) -> nn.Module:
        """The network to train."""
        return context.network.build(seeds.generator(context.seed, *self.purpose))

    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings, as set in the recipe for modes."""
        return recipe.mode

    def ingredients(self, context: Context) -> dict[str, object]:
        """Data, network, seed and training."""
        return {
            "data": context.data.fed_as,
            "net": context.network.key,
            "seed": context.seed_of(*self.purpose),
            "training": str(self.training(context.recipe)),
        }

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, ArtefactData]:
        """Train them."""
        context = making.context
        trained = fit_modes(
            [artefact.network(context) for artefact in group],
            [context.data.train(*artefact.purpose) for artefact in group],
            config=group[0].training(context.recipe),
            seeds=[context.seed_of(*artefact.purpose) for artefact in group],
            valid=context.data.valid(),
            engine=context.engine,
            checkpoints=making.checkpoints,
            report=making.report,
        )
        return {artefact.name: ArtefactData(mode.state) for artefact, mode in zip(group, trained, strict=True)}
