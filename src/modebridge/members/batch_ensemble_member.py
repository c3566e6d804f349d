"""BatchEnsemble: M members that share all weights except two vectors per layer; costs M passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from modebridge.baselines import BatchEnsemble
from modebridge.members.rival_member import RivalMember
from modebridge.members.setting import Setting

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
    pattern = r"batch-ensemble-(\d+)"

    def network(self, setting: Setting, generator: torch.Generator) -> nn.Module:
        """The recipe's network with the members' vectors."""
        net = setting.network.build(generator)
        return BatchEnsemble(net, self.members, example=setting.example, generator=generator)
