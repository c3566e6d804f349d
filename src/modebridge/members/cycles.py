"""Networks in a chain, each trained on from the end of another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from modebridge import seeds
from modebridge.members.artefact import Artefact, Made, Making
from modebridge.members.context import Blueprint, Context
from modebridge.members.mode_member import load_mode
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig, fit_mode

__all__ = ["CycleWeights"]


class CycleWeights(Artefact):
    """The weights after one training cycle that starts at the weights of its only parent.

    Without a parent it starts where mode 0 does. Every cycle starts with zero momentum and has its own image order.
    """

    trained = True

    @abstractmethod
    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings."""

    def ingredients(self, context: Context) -> dict[str, object]:
        """Data, network, seed and training."""
        return {
            "data": context.data.fed_as,
            "net": context.network.key,
            "seed": context.seed_of(self.folder, self.name),
            "training": str(self.training(context.recipe)),
        }

    def epochs(self, recipe: Recipe) -> int:
        """The epochs of the cycle."""
        return self.training(recipe).epochs

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, Made]:
        """Train it; one at a time, since each waits for the previous one."""
        (artefact,) = group
        context = making.context
        net = context.network.build(seeds.generator(context.seed, "mode", 0))
        for parent in artefact.parents(context.recipe):
            # Not strict: a mode does not store the second name of a tied tensor.
            net.load_state_dict(load_mode(context, making.parents[parent.place]).state, strict=False)
        mode = fit_mode(
            net,
            context.data.train(cls.folder, artefact.name),
            config=replace(artefact.training(context.recipe), seed=context.seed_of(cls.folder, artefact.name)),
            engine=context.engine,
            checkpoints=making.checkpoints,
            report=making.report,
        )
        return {artefact.name: Made(mode.state)}

    @classmethod
    def work(cls, group: Sequence[Self], blueprint: Blueprint) -> float:
        """One forward and one backward pass for each; a backward pass counts as two forward passes."""
        return 3 * blueprint.base_cost.flops * len(group)
