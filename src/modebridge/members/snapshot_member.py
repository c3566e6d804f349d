"""Snapshot ensembles: one training budget split into learning rate cycles, keeping a network at the end of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from modebridge.errors import ModebridgeError
from modebridge.members.artefact import Artefact
from modebridge.members.member import Numbered, RowPlan
from modebridge.members.mode_member import OneNetwork
from modebridge.members.network_weights import CycleWeights
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig

__all__ = ["SnapshotMember", "SnapshotWeights"]

MOST = 4
"""Maximum number of networks, if the budget is long enough for that many cycles."""


@dataclass(frozen=True)
class SnapshotWeights(CycleWeights):
    """The network at the end of a cycle, which starts at the end of the previous one.

    Args:
        number: number of the cycle, from 1.
        cycles: the number of cycles that the epochs of one mode are split into.
    """

    number: int
    cycles: int
    folder = "snapshots"
    stage = "snapshots"

    @property
    def name(self) -> str:
        """Its number and the number of cycles."""
        return f"{self.number}-of-{self.cycles}"

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The previous cycle."""
        return (SnapshotWeights(self.number - 1, self.cycles),) if self.number > 1 else ()

    def training(self, recipe: Recipe) -> TrainConfig:
        """A cosine from the recipe's peak to nearly 0; only the first cycle warms up."""
        mode = recipe.mode
        if mode.epochs < self.cycles:
            raise ModebridgeError(
                f"Expected mode.epochs to be at least 1 for each of the {self.cycles} cycles of a snapshot ensemble, "
                f"but got {mode.epochs}; increase it, or use snapshots with fewer cycles."
            )
        # All cycles together have N epochs, whatever their number.
        length = mode.epochs * self.number // self.cycles - mode.epochs * (self.number - 1) // self.cycles
        warmup = mode.warmup if self.number == 1 else 1
        return replace(mode, epochs=length, warmup=warmup, average_from=0, keep="last")


@dataclass(frozen=True)
class SnapshotMember(Numbered, OneNetwork):
    """One network of a snapshot ensemble.

    >>> SnapshotMember(3, 4).name
    'snapshot-3-of-4'
    """

    number: int
    cycles: int
    method = "snapshot"
    family = "snapshot ensemble"
    pattern = r"snapshot-(\d+)-of-(\d+)"
    between, omitted = "-of-", 0

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights."""
        return (SnapshotWeights(self.number, self.cycles),)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "snapshot-3-of-4"."""
        member = super().parse(name)
        return member if member is not None and 1 <= member.number <= member.cycles else None

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """Four cycles, or as many as there are epochs, but at least two."""
        cycles = min(MOST, max(2, recipe.mode.epochs))
        return [cls(number, cycles) for number in range(1, cycles + 1)]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[RowPlan]:
        """The last 2, 3, ... networks of each chain, as in the authors' code: later ones are better."""
        members = cls.of(recipe)
        counts = list(dict.fromkeys(member.cycles for member in members))
        plans: list[RowPlan] = []
        for cycles in counts:
            chain = sorted(member.number for member in members if member.cycles == cycles)
            for m in range(2, len(chain) + 1):
                name = f"snapshot x{m}" + (f" of {cycles}" if len(counts) > 1 else "")
                note = f"the last {m} of {cycles} snapshots; together they cost the training of one network"
                last = tuple(cls(number, cycles) for number in chain[-m:])
                plans.append(RowPlan(name, last, cls.family, cls.order(len(plans)), note))
        return plans
