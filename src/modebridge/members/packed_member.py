"""Packed ensembles: M narrow networks run as one by grouped convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn

from modebridge.baselines import Packed
from modebridge.baselines.packed import check_split
from modebridge.members.rival_member import RivalMember, paper_spec
from modebridge.members.setting import Setting
from modebridge.nets import SPECS, ResNet, ResNetSpec
from modebridge.recipes import Recipe

__all__ = ["PackedMember"]


@dataclass(frozen=True)
class PackedMember(RivalMember):
    """A packed ensemble.

    Args:
        members: number of members M.
        alpha: width of all members together, in multiples of the recipe's network; 1 for any network, more only for the
            paper's.

    >>> PackedMember(4, 2).name, PackedMember(4, 1).name
    ('packed-4-x2', 'packed-4')
    """

    members: int = 4
    alpha: int = 2
    method = "packed"
    family = "packed ensemble"
    pattern = r"packed-(\d+)(?:-x([2-9]))?"

    def network(self, setting: Setting, generator: torch.Generator) -> nn.Module:
        """For the paper's networks, narrow ones initialised one by one; otherwise the network itself, split."""
        if self.alpha == 1 and setting.network.spec is None:
            return Packed(setting.network.build(generator), self.members, example=setting.example)
        spec = paper_spec(setting, self)
        packed = Packed(ResNet(_scaled(spec, self.alpha, 1)), self.members, example=setting.example)
        packed.fill([ResNet(_scaled(spec, self.alpha, self.members), generator) for _ in range(self.members)])
        return packed

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        """Four members, with twice the width if it can be changed."""
        return [cls(alpha=2 if recipe.net in SPECS else 1)]


def _scaled(spec: ResNetSpec, alpha: int, members: int) -> ResNetSpec:
    """All widths of a network, including the stem's, times alpha and divided among members."""

    def part(width: int) -> int:
        check_split(alpha * width, members, "the widths")
        return alpha * width // members

    stem, kernel, stride = spec.stem
    return replace(spec, widths=tuple(map(part, spec.widths)), stem=(part(stem), kernel, stride))
