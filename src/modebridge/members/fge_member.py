"""Fast geometric ensembling: short learning rate cycles from a trained network on, keeping a network after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from modebridge.members.artefact import Artefact
from modebridge.members.member import Member, Numbered, RowPlan
from modebridge.members.mode_member import ModeMember, OneNetwork, weights_of
from modebridge.members.network_weights import CycleWeights
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig, TriangleConfig

__all__ = ["FgeMember", "FgeWeights"]

NETWORKS = 4
"""Networks in the largest default ensemble, including mode 0."""
PEAK, LOWEST = 0.5, 0.01
"""Peak relative to the recipe's, and minimum relative to that: 5e-2 to 5e-4 for ResNets with 0.1 in Garipov et al."""


@dataclass(frozen=True)
class FgeWeights(CycleWeights):
    """The network after a cycle of a few epochs; the first starts at mode 0 as used by the run.

    Args:
        number: number of the cycle, from 1.
    """

    number: int
    folder = "fge"
    stage = "fge"

    @property
    def name(self) -> str:
        """Its number."""
        return str(self.number)

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The previous network."""
        return (FgeWeights(self.number - 1) if self.number > 1 else weights_of(0, recipe),)

    def training(self, recipe: Recipe) -> TrainConfig:
        """A tenth of the epochs of a mode, limited to 2 to 4: the authors' cycles have 2 or 4."""
        mode = recipe.mode
        return TriangleConfig(
            epochs=min(4, max(2, mode.epochs // 10)),
            lr=PEAK * mode.lr,
            momentum=mode.momentum,
            weight_decay=mode.weight_decay,
            nesterov=mode.nesterov,
            lowest=LOWEST,
        )


@dataclass(frozen=True)
class FgeMember(Numbered, OneNetwork):
    """A network of a fast geometric ensemble; mode 0 precedes the first.

    >>> FgeMember(1).name
    'fge-1'
    """

    number: int
    method = "fge"
    family = "fast geometric ensemble"
    pattern = r"fge-([1-9]\d*)"

    @property
    def ancestors(self) -> tuple[Member, ...]:
        """The mode that it started from."""
        return (ModeMember(0),)

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights."""
        return (FgeWeights(self.number),)

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """Three, in addition to mode 0."""
        return [cls(number) for number in range(1, NETWORKS)]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[RowPlan]:
        """Mode 0 and the first networks after it."""
        last = max((member.number for member in cls.of(recipe)), default=0)
        return [
            RowPlan(
                f"FGE x{m}",
                (ModeMember(0), *(cls(number) for number in range(1, m))),
                cls.family,
                cls.order(m),
                f"mode 0 and {m - 1} short cycles from it",
            )
            for m in range(2, last + 2)
        ]
