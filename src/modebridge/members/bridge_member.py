"""Bridges of type I and II: small networks on the features of one or two modes, trained to imitate points of curves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from modebridge.bridges import Bridge, Kind, plan_bridge
from modebridge.errors import plural
from modebridge.members.artefact import Artefact, Tensors
from modebridge.members.curve_member import PointMember, load_curve
from modebridge.members.member import Member
from modebridge.members.mode_member import ModeMember, mode_on, on_base, split_base
from modebridge.members.setting import Setting
from modebridge.members.small_network import SIZE, SmallNetwork
from modebridge.recipes import Recipe
from modebridge.scoring import Row

__all__ = ["BridgeMember", "row_name"]


@dataclass(frozen=True)
class BridgeMember(SmallNetwork):
    """A bridge.

    Args:
        kind: "I" reads mode i, "II" reads both.
        i: the mode that a type I bridge reads, or the lower end.
        j: the other end.
        size: "small", "medium", "slim8".
        r: the position on the curve, counted from the lower mode number, whichever end is read.
        base: the base of the modes; "" for that of the recipe.

    >>> BridgeMember("I", 1, 0).name, BridgeMember("II", 0, 1, "medium", 0.3).name
    ('I-1-0-small', 'II-0-1-medium@0.3')
    >>> BridgeMember("I", 0, 1, base="swa").name
    'swa-I-0-1-small'
    """

    kind: Kind
    i: int
    j: int
    size: str = "small"
    r: float = 0.5
    base: str = ""

    def __post_init__(self) -> None:
        if len(self.reads) == 2:  # the order of the ends does not matter
            i, j = self.pair
            vars(self).update(i=i, j=j)

    @property
    def name(self) -> str:
        """Type, ends, size, and the position if it is not the middle."""
        name = f"{self.kind}-{self.i}-{self.j}-{self.size}" + ("" if self.r == 0.5 else f"@{self.r:g}")
        return on_base(self.base, name)

    @property
    def family(self) -> str:  # type: ignore[override]
        """By type."""
        return f"with type {self.kind} bridges"

    @property
    def title(self) -> str:
        """Type and size."""
        return f"bridge {self.kind} {self.size}"

    @property
    def pair(self) -> tuple[int, int]:
        """The ends of its curve, the lower number first."""
        return min(self.i, self.j), max(self.i, self.j)

    @property
    def reads(self) -> tuple[Member, ...]:
        """One mode, or both."""
        return tuple(mode_on(self.base, k) for k in (self.pair if self.kind == "II" else (self.i,)))

    @property
    def ancestors(self) -> tuple[Member, ...]:
        """Both ends."""
        return tuple(mode_on(self.base, k) for k in self.pair)

    @property
    def imitates(self) -> Member:
        """The network on the curve."""
        return PointMember(*self.pair, self.r, self.base)

    @property
    def position(self) -> float:
        """The position on the curve."""
        return self.r

    def learns_from(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The curve and its ends."""
        return self.imitates.artefacts(recipe)

    def plan(self, setting: Setting, tensors: Mapping[str, Tensors]) -> Bridge:
        """A plan that reads one end or both; the target is the network on the curve."""
        return plan_bridge(
            setting.net,
            load_curve(setting, tensors, *self.pair, self.r, self.base),
            setting.example,
            kind=self.kind,
            source="start" if self.i <= self.j else "end",
            r=self.r,
            name=self.name,
            seed=setting.seed_of(f"{self.kind}-{self.i}-{self.j}"),
            slim=setting.recipe.slim(self.size),
            budget=setting.recipe.budget_of(self.size),
        )

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "I-0-1-small", "II-0-1-slim8@0.3" or "swa-I-0-1-small"."""
        base, rest = split_base(name)
        match = re.fullmatch(rf"(II|I)-(\d+)-(\d+)-{SIZE}(?:@([\d.]+))?", rest)
        if match is None:
            return None
        return cls(
            "II" if match[1] == "II" else "I", int(match[2]), int(match[3]), match[4], float(match[5] or 0.5), base
        )

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """For every curve: type I from its first end or from both, and type II."""
        pairs = recipe.curves()
        members: list[Member] = []
        for size in recipe.sizes:
            for i, j in pairs:
                members += [cls("I", i, j, size)] + ([] if recipe.pairs == "first" else [cls("I", j, i, size)])
            members += [cls("II", i, j, size) for i, j in (pairs if recipe.type2 == "all" else pairs[:1])]
        return members

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """Type I bridges on one mode, adding one at a time; type II bridges between all modes of a deep ensemble."""
        partners = [j for i, j in recipe.curves() if i == 0]
        plans: list[Row] = []
        for k, size in enumerate(recipe.sizes):
            for count in range(1, len(partners) + 1):
                ones = [cls("I", 0, j, size) for j in partners[:count]]
                plans.append(
                    Row(
                        row_name("DE-1", count, "I", size, recipe),
                        (ModeMember(0).name, *(one.name for one in ones)),
                        ones[0].family,
                        (1, 1, k, count),
                        role="bridge" if (k, count) == (0, 1) else "",
                    )
                )
            for m in range(2, recipe.modes + 1):
                twos = [cls("II", i, j, size) for i in range(m) for j in range(i + 1, m)]
                plans.append(
                    Row(
                        row_name(f"DE-{m}", len(twos), "II", size, recipe),
                        (*(ModeMember(i).name for i in range(m)), *(two.name for two in twos)),
                        twos[0].family,
                        (m, 1, k),
                    )
                )
        return plans


def row_name(base: str, count: int, kind: str, size: str, recipe: Recipe) -> str:
    """The name of an ensemble with bridges in tables; the first size of a recipe is omitted."""
    name = f"{base} + {plural(count, 'bridge')} {kind}"
    return name if size == recipe.sizes[0] else f"{name}, {size}"
