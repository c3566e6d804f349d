"""Stochastic weight averaging: one network, the mean of the weights after each epoch of the last quarter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from modebridge.members.member import Member, Method
from modebridge.members.mode_member import ModeMember, ModeWeights
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig

__all__ = ["SwaMember", "SwaWeights"]


@dataclass(frozen=True)
class SwaWeights(ModeWeights):
    """A network trained as the mode of its number, from the same start on the same batches, and averaged.

    Up to epoch 3 N / 4 of N it is that mode. From there on the learning rate stays at its value, and the weights after
    each epoch join a running mean, which takes no part in training; batch norm's statistics are those of the mean.
    """

    folder = "swa"
    stage = "swa"

    @classmethod
    def training(cls, recipe: Recipe) -> TrainConfig:
        """The recipe's, averaged over the last quarter."""
        mode = recipe.mode
        begin = mode.average_from or min(mode.epochs, max(1, 3 * mode.epochs // 4))
        # The mean of all snapshots: which of the means on the way looks best on validation is not asked.
        return replace(mode, average_from=begin, keep="last")


@dataclass(frozen=True)
class SwaMember(Method, ModeMember):
    """The SWA network of a mode's number: a member of its own, and the mode that curves and bridges on "swa" stand on.

    >>> SwaMember(0).name
    'swa-0'
    """

    method = "swa"
    base = "swa"
    family = "SWA"

    @property
    def title(self) -> str:
        """The first one goes without a number."""
        return f"SWA {self.number}" if self.number else "SWA"

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Member]:
        """The first; none where the modes of the run are averaged themselves."""
        return [] if recipe.base == cls.base else [cls(0)]
