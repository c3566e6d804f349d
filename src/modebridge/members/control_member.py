"""The control: a bridge that learns labels without a curve, to show what the curve contributes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from modebridge.bridges import Bridge, plan_bridge
from modebridge.members.artefact import Tensors
from modebridge.members.member import Member
from modebridge.members.mode_member import ModeMember
from modebridge.members.setting import Setting
from modebridge.members.small_network import SIZE, SmallNetwork
from modebridge.recipes import Recipe
from modebridge.scoring import Row

__all__ = ["ControlMember"]


@dataclass(frozen=True)
class ControlMember(SmallNetwork):
    """A bridge of type I on mode i that is trained on labels.

    Args:
        i: the mode that it reads.
        j: the end of the curve of the matching bridge; only part of the name, since the control uses no curve.
        size: the size of the matching bridge.

    >>> ControlMember(0, 1, "small").name
    'labels-0-1-small'
    """

    i: int
    j: int
    size: str = "small"
    family = "label control"

    @property
    def name(self) -> str:
        """Like the name of the matching bridge."""
        return f"labels-{self.i}-{self.j}-{self.size}"

    @property
    def title(self) -> str:
        """What it is, and its size."""
        return f"label control {self.size}"

    @property
    def reads(self) -> tuple[Member, ...]:
        """One mode."""
        return (ModeMember(self.i),)

    def belongs(self, recipe: Recipe) -> bool:
        """Whether the recipe has both modes."""
        return max(self.i, self.j) < recipe.modes

    def plan(self, setting: Setting, tensors: Mapping[str, Tensors]) -> Bridge:
        """A plan that reads the mode; the targets are labels."""
        return plan_bridge(
            setting.net,
            ModeMember(self.i).load(setting, tensors).mode,
            setting.example,
            target="labels",
            name=self.name,
            seed=setting.seed_of(f"labels-{self.i}-{self.j}"),
            slim=setting.recipe.slim(self.size),
            budget=setting.recipe.budget_of(self.size),
        )

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "labels-0-1-small"."""
        match = re.fullmatch(rf"labels-(\d+)-(\d+)-{SIZE}", name)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """One per size, next to the bridges of the first curve."""
        return [cls(*recipe.curves()[0], size) for size in recipe.sizes] if recipe.control else []

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """One network with the control instead of its first bridge."""
        member = cls(*recipe.curves()[0], recipe.sizes[0])
        note = "the same bridge trained on labels, without a curve"
        return [
            Row(
                "DE-1 + 1 label control",
                (ModeMember(member.i).name, member.name),
                cls.family,
                (1, 2),
                note,
                role="control",
            )
        ]
