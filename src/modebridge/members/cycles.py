"""Networks in a chain, each trained on from where another ended."""

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
    """The weights after one cycle of training that begins at the weights of its only parent.

    Without a parent it begins where mode 0 does. The momentum begins anew in each cycle, and so does the order of the
    images, which every cycle has its own of.
    """

    trained = True

    @abstractmethod
    def training(self, recipe: Recipe) -> TrainConfig:
        """How long and how hard."""

    def ingredients(self, context: Context) -> dict[str, object]:
        """Data, network, seed and training."""
        return {
            "data": context.data.fed_as,
            "net": context.network.key,
            "seed": context.seed_of(self.folder, self.name),
            "training": str(self.training(context.recipe)),
        }

    def epochs(self, recipe: Recipe) -> int:
        """Those of the cycle."""
        return self.training(recipe).epochs

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, Made]:
        """Train it; one at a time, since each waits for the one before."""
        (artefact,) = group
        context = making.context
        net = context.network.build(seeds.generator(context.seed, "mode", 0))
        for parent in artefact.parents(context.recipe):
            # Not strict: the second name of a tied tensor is not carried by a mode.
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
        """A forward and a backward pass of each; the latter counts as two of the former."""
        return 3 * blueprint.base_cost.flops * len(group)
