"""Monte-Carlo dropout: one network trained with dropout, and evaluated T times with it; costs T passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from modebridge import seeds
from modebridge.baselines import McDropout, Rival, with_dropout
from modebridge.members.context import Blueprint
from modebridge.members.rival_member import RivalMember, RivalWeights

__all__ = ["McDropoutMember"]


@dataclass(frozen=True)
class McDropoutMember(RivalMember):
    """A network with dropout.

    Args:
        passes: number of passes T.
        percent: dropout rate in percent, if the network has no dropout of its own.

    >>> McDropoutMember(4).name, McDropoutMember(8, 20).name
    ('mc-dropout-4', 'mc-dropout-8-p20')
    """

    passes: int = 4
    percent: int = 10
    method = "mc-dropout"
    family = "Monte-Carlo dropout"
    pattern = r"mc-dropout-(\d+)(?:-p(\d\d?))?"
    between, omitted = "-p", 10

    @property
    def title(self) -> str:
        """With the number of passes."""
        rate = "" if self.percent == self.omitted else f", rate {self.percent / 100:g}"
        return f"MC dropout, {self.passes} passes{rate}"

    @property
    def weights(self) -> RivalWeights:
        """Trained once, whatever the number of passes."""
        return RivalWeights(replace(self, passes=4))

    def network(self, blueprint: Blueprint, generator: torch.Generator) -> nn.Module:
        """The recipe's network with dropout."""
        return with_dropout(blueprint.network.build(generator), self.percent / 100, example=blueprint.example)

    def ready(self, blueprint: Blueprint, network: nn.Module) -> Rival:
        """The same, with masks for every pass."""
        seed = seeds.seed_for(blueprint.seed, "mc-dropout")
        return McDropout(network, self.passes, example=blueprint.example, seed=seed)

    def trained_flops(self, blueprint: Blueprint) -> float:
        """The cost of one pass."""
        return blueprint.base_cost.flops
