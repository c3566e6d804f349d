"""Controls: the paper's small bridge on mode 0, with another target than the curve (the paper itself has r = 1).

    modebridge run cifar10 --set members_file=benchmarks/controls.py --set methods=heads,controls --data DIR --out RUN
    python benchmarks/published.py --record RUN results/NAME

`other-0-1-small` imitates mode 1, `self-0-small` mode 0 itself, `mean-0-small` the mean of all modes. They are trained
in one pass with the recipe's other bridges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from modebridge.bridges import Target, ensemble_target
from modebridge.members import Member, ModeMember, Parents, Setting, SmallNetwork, register
from modebridge.recipes import Recipe
from modebridge.scoring import Row

TITLES = {"self": "its own mode", "mean": "the mean of all modes"}


@register
@dataclass(frozen=True)
class TargetControl(SmallNetwork):
    """A small network on mode 0 that imitates one mode or the mean of all.

    >>> TargetControl("other-0-2").name, TargetControl("self-0").name
    ('other-0-2-small', 'self-0-small')
    """

    target: str
    size: str = "small"
    method = "controls"
    family = "controls"

    @property
    def stem(self) -> str:
        return self.target

    def teachers(self, recipe: Recipe) -> tuple[ModeMember, ...]:
        kind, *numbers = self.target.split("-")
        if kind == "mean":
            return tuple(ModeMember(k) for k in range(recipe.modes))
        return (ModeMember(int(numbers[-1])),)

    @property
    def reads(self) -> tuple[Member, ...]:
        return (ModeMember(0),)

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        return *self.reads, *self.teachers(recipe)

    def learned(self, setting: Setting, tensors: Parents) -> Target:
        return ensemble_target([mode.load(setting, tensors) for mode in self.teachers(setting.recipe)])

    @classmethod
    def parse(cls, name: str) -> Self | None:
        match = re.fullmatch(r"(other-0-\d+|self-0|mean-0)-(small|medium)", name)
        return cls(match[1], match[2]) if match else None

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        return [cls(f"other-0-{k}") for k in range(1, recipe.modes)] + [cls("self-0"), cls("mean-0")]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        return [
            Row(
                f"one network + 1 bridge on {TITLES.get(one.target.partition('-')[0]) or 'mode ' + one.target[-1]}",
                ("mode-0", one.name),
                cls.family,
                cls.order(k),
            )
            for k, one in enumerate(cls.of(recipe))
        ]
