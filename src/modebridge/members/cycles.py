"""Networks in a chain, each trained on from the end of another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from modebridge import seeds
from modebridge.members.artefact import Made, Making
from modebridge.members.context import Context
from modebridge.members.mode_member import load_mode
from modebridge.members.network_weights import NetworkWeights
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig, fit_mode

__all__ = ["CycleWeights"]


class CycleWeights(NetworkWeights):
    """The weights after one training cycle that starts at the weights of its only parent.

    Without a parent it starts where mode 0 does. Every cycle starts with zero momentum and has its own image order.
    """

    @property
    def purpose(self) -> tuple[str | int, ...]:
        """The cycle of a chain."""
        return self.folder, self.name

    @abstractmethod
    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings."""

    def together(self, context: Context) -> int:
        """One at a time, since each waits for the previous one."""
        return 1

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, Made]:
        """Train it."""
        (artefact,) = group
        context = making.context
        net = context.network.build(seeds.generator(context.seed, "mode", 0))
        for parent in artefact.parents(context.recipe):
            # Not strict: a mode does not store the second name of a tied tensor.
            net.load_state_dict(load_mode(context, making.parents[parent.place]).state, strict=False)
        mode = fit_mode(
            net,
            context.data.train(*artefact.purpose),
            config=replace(artefact.training(context.recipe), seed=context.seed_of(*artefact.purpose)),
            engine=context.engine,
            checkpoints=making.checkpoints,
            report=making.report,
        )
        return {artefact.name: Made(mode.state)}
