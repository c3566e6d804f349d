"""Stochastic weight averaging: one network, the mean of the weights after each epoch of the last quarter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from modebridge.members.member import Method
from modebridge.members.mode_member import ModeMember, ModeWeights
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig

__all__ = ["SwaMember", "SwaWeights"]


@dataclass(frozen=True)
class SwaWeights(ModeWeights):
    """A network trained like the mode with its number, from the same start on the same batches, and averaged.

    Up to epoch 3 N / 4 of N it is identical to that mode. From there on the learning rate is constant, and the weights
    after each epoch join a running mean, which does not affect training. Batch norm statistics are those of the mean.
    """

    folder = "swa"
    stage = "swa"

    def training(self, recipe: Recipe) -> TrainConfig:
        """The recipe's settings, averaged over the last quarter."""
        mode = recipe.training("mode")
        start = min(mode.epochs, max(1, 3 * mode.epochs // 4))
        # Always the mean of all snapshots; intermediate means are not compared on validation.
        return replace(mode, average_from=start, keep="last")


@dataclass(frozen=True)
class SwaMember(Method, ModeMember):
    """The SWA network with a mode's number: a member, and also the mode that curves and bridges on "swa" use.

    >>> SwaMember(0).name
    'swa-0'
    """

    method = "swa"
    base = "swa"
    family = "SWA"

    @property
    def title(self) -> str:
        """Without a number for the first."""
        return f"SWA {self.number}" if self.number else "SWA"

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """The first; none if the modes of the run are averaged themselves."""
        return [] if recipe.base == cls.base else [cls(0)]
