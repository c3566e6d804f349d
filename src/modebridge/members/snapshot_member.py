"""Snapshot ensembles: one training budget cut into cycles of the learning rate, a network kept at the end of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from modebridge.errors import ModebridgeError
from modebridge.members.artefact import Artefact
from modebridge.members.cycles import CycleWeights
from modebridge.members.member import Member, Method, RowPlan
from modebridge.members.mode_member import OneNetwork
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig

__all__ = ["SnapshotMember", "SnapshotWeights"]

MOST = 4
"""Networks, where the budget is long enough for as many cycles."""


@dataclass(frozen=True)
class SnapshotWeights(CycleWeights):
    """The network at the end of a cycle, which begins where the cycle before ended.

    Args:
        number: of the cycle, from 1.
        cycles: into how many the epochs of one mode are cut.
    """

    number: int
    cycles: int
    folder = "snapshots"
    stage = "snapshots"

    @property
    def name(self) -> str:
        """Its number of how many."""
        return f"{self.number}-of-{self.cycles}"

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The cycle before."""
        return (SnapshotWeights(self.number - 1, self.cycles),) if self.number > 1 else ()

    def training(self, recipe: Recipe) -> TrainConfig:
        """A cosine from the recipe's peak to nearly 0; only the first cycle warms up."""
        mode = recipe.mode
        if mode.epochs < self.cycles:
            raise ModebridgeError(
                f"Expected mode.epochs to be at least 1 for each of the {self.cycles} cycles of a snapshot ensemble, "
                f"but got {mode.epochs}; raise it, or name snapshots of fewer cycles."
            )
        # All cycles together are N epochs long, however many there are.
        length = mode.epochs * self.number // self.cycles - mode.epochs * (self.number - 1) // self.cycles
        warmup = mode.warmup if self.number == 1 else 1
        return replace(mode, epochs=length, warmup=warmup, average_from=0, keep="last")


@dataclass(frozen=True)
class SnapshotMember(Method, OneNetwork):
    """One network of a snapshot ensemble.

    >>> SnapshotMember(3, 4).name
    'snapshot-3-of-4'
    """

    number: int
    cycles: int
    method = "snapshot"
    family = "snapshot ensemble"

    @property
    def name(self) -> str:
        """Its number of how many."""
        return f"snapshot-{self.number}-of-{self.cycles}"

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its weights."""
        return (SnapshotWeights(self.number, self.cycles),)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "snapshot-3-of-4"."""
        form = re.fullmatch(r"snapshot-(\d+)-of-(\d+)", name)
        return cls(int(form[1]), int(form[2])) if form and 1 <= int(form[1]) <= int(form[2]) else None

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Member]:
        """Four cycles, or as many as there are epochs, but two at least."""
        cycles = min(MOST, max(2, recipe.mode.epochs))
        return [cls(number, cycles) for number in range(1, cycles + 1)]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[RowPlan]:
        """The last 2, 3, ... networks of each chain, as the authors take them: the later, the better."""
        members = [member for member in cls.of(recipe) if isinstance(member, cls)]
        counts = list(dict.fromkeys(member.cycles for member in members))
        plans: list[RowPlan] = []
        for cycles in counts:
            chain = sorted(member.number for member in members if member.cycles == cycles)
            for m in range(2, len(chain) + 1):
                name = f"snapshot x{m}" + (f" of {cycles}" if len(counts) > 1 else "")
                note = f"the last {m} of {cycles} snapshots; all of them take the training of one network"
                last = tuple(cls(number, cycles) for number in chain[-m:])
                plans.append(RowPlan(name, last, cls.family, cls.order(len(plans)), note))
        return plans
