"""BatchEnsemble: M members that share all weights except two vectors per layer; costs M passes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from modebridge.members.context import Blueprint
from modebridge.members.member import Member
from modebridge.members.rival_member import RivalMember
from modebridge.recipes import Recipe
from modebridge.rivals import BatchEnsemble

__all__ = ["BatchEnsembleMember"]


@dataclass(frozen=True)
class BatchEnsembleMember(RivalMember):
    """A BatchEnsemble.

    Args:
        members: number of members M.

    >>> BatchEnsembleMember(4).name
    'batch-ensemble-4'
    """

    members: int = 4
    method = "batch-ensemble"
    family = "BatchEnsemble"

    @property
    def name(self) -> str:
        """The name, with the number of members."""
        return f"{self.method}-{self.members}"

    @property
    def title(self) -> str:
        """With the number of members."""
        return f"BatchEnsemble, {self.members} members"

    def network(self, blueprint: Blueprint, generator: torch.Generator) -> nn.Module:
        """The recipe's network with the members' vectors."""
        net = blueprint.network.build(generator)
        return BatchEnsemble(net, self.members, example=blueprint.example, generator=generator)

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "batch-ensemble-4"."""
        form = re.fullmatch(r"batch-ensemble-(\d+)", name)
        return cls(int(form[1])) if form else None

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Member]:
        """One with four members."""
        return [cls()]
