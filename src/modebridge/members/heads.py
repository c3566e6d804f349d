"""A bridge with several heads on one trunk: each learns another network, at little more than the cost of one bridge."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from modebridge.bridges import Target, ensemble_target, heads_target, label_target
from modebridge.errors import plural
from modebridge.matching import suits_cutmix
from modebridge.members.bridge import SIZE, SmallNetwork
from modebridge.members.curve import PointMember
from modebridge.members.member import Made, Member, Parents
from modebridge.members.network import ModeMember, OneNetwork
from modebridge.members.setting import Setting
from modebridge.recipes import Recipe
from modebridge.scoring import Row
from modebridge.training import BEST_CUTMIX, TrainConfig
from modebridge.training.bridging import LABELS_BELOW, by_chance, training_accuracy

PARTS = ("others", "midpoints", "labels", "mean")
"""What heads learn: every other mode, the midpoint of every curve from the mode that is read, labels, and the mean of
all modes."""
ONE = f"(?:{'|'.join(PARTS)})"
NOTE = "a small network on the first one's features, with a head that imitates each of the others"


@dataclass(frozen=True)
class HeadsMember(SmallNetwork):
    """A type I bridge on mode i with one head per network that it learns; `parts` are from `PARTS`.

    >>> HeadsMember(0).name, HeadsMember(0, ("midpoints", "labels"), "medium").name
    ('heads-0-others-small', 'heads-0-midpoints+labels-medium')
    """

    i: int
    parts: tuple[str, ...] = PARTS[:1]
    size: str = "small"
    method = "heads"
    pattern = rf"heads-(?P<i>\d+)-(?P<parts>{ONE}(?:\+{ONE})*)-{SIZE}"
    family = "with heads"
    stage = "heads"
    wide = True

    @classmethod
    def step(cls) -> str:
        return "heads"

    @classmethod
    def mixing(cls, setting: Setting) -> tuple[float, float]:
        return (0.0, BEST_CUTMIX) if suits_cutmix(setting.example) else super().mixing(setting)

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        for node in group:
            data, (mode,) = setting.data.train("bridges", bridges=True), node._modes(setting, parents)
            (right,), counts = training_accuracy(setting.net, [mode], data, setting.engine)
            if by_chance(counts) < right < LABELS_BELOW and "labels" not in node.parts:
                taught = replace(node, parts=(*node.parts, "labels"))
                warnings.warn(
                    f"Network {node.i}, which the heads read, is right on only {right:.0%} of its training data: a "
                    f"head on labels, as `fit_bridge` adds, helps there: --set methods={taught.name},distilled.",
                    stacklevel=2,
                )
        return super().make(group, setting, parents, config)

    @property
    def stem(self) -> str:
        return f"heads-{self.i}-{'+'.join(self.parts)}"

    @property
    def title(self) -> str:
        parts = "" if self.parts == PARTS[:1] else f" ({', '.join(self.parts)})"
        return f"{'' if self.size == 'small' else self.size + ' '}heads on mode {self.i}{parts}"

    @property
    def reads(self) -> tuple[Member, ...]:
        return (ModeMember(self.i),)

    def belongs(self, recipe: Recipe) -> bool:
        return self.i < recipe.modes and all(self._learned(part, recipe) for part in self.parts)

    def heads(self, recipe: Recipe) -> int:
        return sum(len(self._learned(part, recipe)) for part in self.parts)

    def _learned(self, part: str, recipe: Recipe) -> Sequence[tuple[OneNetwork, ...]]:
        """The networks whose mean each head of a part learns; none for labels."""
        modes = tuple(ModeMember(k) for k in range(recipe.modes))
        if part == "others":
            return [(mode,) for mode in modes if mode.number != self.i]
        if part == "midpoints":
            return [(PointMember(*pair),) for pair in recipe.curves() if self.i in pair]
        return [modes if part == "mean" else ()]

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        modes = [mode for member in self.teachers(recipe) for mode in (member.made_from(recipe) or (member,))]
        return tuple(dict.fromkeys((ModeMember(self.i), *modes)))

    def teachers(self, recipe: Recipe) -> tuple[OneNetwork, ...]:
        # Not in the order of the parts: bridges are identified by what they learn from, in this order.
        parts = [part for part in ("mean", "others", "midpoints") if part in self.parts]
        return tuple(dict.fromkeys(one for part in parts for head in self._learned(part, recipe) for one in head))

    def learned(self, setting: Setting, tensors: Parents) -> Target:
        learned = [networks for part in self.parts for networks in self._learned(part, setting.recipe)]
        loaded = [[network.load(setting, tensors) for network in networks] for networks in learned]
        return heads_target([ensemble_target(modes) if modes else label_target() for modes in loaded])

    @classmethod
    def parse(cls, name: str) -> Self | None:
        found = super().parse(name)
        parts = tuple(str(found.parts).split("+")) if found else ()
        return replace(found, parts=parts) if found and len(set(parts)) == len(parts) else None

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Self]:
        return [member for member in super().of(recipe) if member.belongs(recipe)]

    @classmethod
    def usual(cls, recipe: Recipe) -> Sequence[Self]:
        return [cls(0, size=recipe.sizes[0])]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        return [
            Row(
                f"one network + {plural(one.heads(recipe), 'head')}"
                + ("" if one.parts == PARTS[:1] else f" ({', '.join(one.parts)})")
                + ("" if one.size == recipe.sizes[0] else f", {one.size}")
                + (f", on mode {one.i}" if one.i else ""),
                (ModeMember(one.i).name, one.name),
                cls.family,
                (1, 1.5, k),  # after the bridges on one network
                NOTE if one.parts == PARTS[:1] else "a small network on its features, with a head for each of these",
                role="heads" if k == 0 and "midpoints" not in one.parts else "",
            )
            for k, one in enumerate(cls.of(recipe))
        ]
