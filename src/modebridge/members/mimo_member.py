"""MIMO: one network that reads M images and predicts each; in use all M are the same image, and it costs one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from modebridge.baselines import Mimo
from modebridge.baselines.mimo import REPEATS, SAME
from modebridge.members.rival_member import RivalMember, paper_spec
from modebridge.members.setting import Setting
from modebridge.nets import ResNet

__all__ = ["MimoMember"]


@dataclass(frozen=True)
class MimoMember(RivalMember):
    """A MIMO network.

    Args:
        members: number of members M.
        width: width of all but the stem, in multiples of the recipe's network; 1 for any network, more only for the
            paper's (its own MIMO has 2).

    >>> MimoMember(2).name, MimoMember(3, 2).name
    ('mimo-2', 'mimo-3-x2')
    """

    members: int = 2
    width: int = 1
    method = "mimo"
    family = "MIMO"
    pattern = r"mimo-(\d+)(?:-x([2-9]))?"

    @property
    def settings(self) -> str:
        """Includes how batches are built."""
        return f"{self} repeats {REPEATS} same {SAME}"

    def network(self, setting: Setting, generator: torch.Generator) -> nn.Module:
        """The recipe's network, or a wider one, with new first and last layers."""
        if self.width == 1:
            net = setting.network.build(generator)
        else:
            spec = paper_spec(setting, self)
            net = ResNet(replace(spec, widths=tuple(self.width * width for width in spec.widths)), generator)
        return Mimo(net, self.members, example=setting.example, generator=generator)

    def trained_flops(self, setting: Setting) -> float:
        """Every image is in a batch several times."""
        return REPEATS * super().trained_flops(setting)
