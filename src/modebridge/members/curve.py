"""Curves between modes, and the networks on them, which bridges imitate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from modebridge import trees
from modebridge.curves import Curve
from modebridge.members.member import LAST, ArtefactData, Made, Member, Node, Parents
from modebridge.members.network import ON_BASE, OneNetwork, mode_on, networks, on_base, weights_of
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.scoring import Row
from modebridge.training import TrainConfig, fit_curves


@dataclass(frozen=True)
class Pin(Node):
    """The pin of a Bezier curve between two modes, the lower number first."""

    i: int
    j: int
    base: str = ""
    folder = "curves"
    stage = "curves"
    trained = True
    together = "several"

    @property
    def name(self) -> str:
        return on_base(self.base, f"{self.i}-{self.j}")

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        return weights_of(self.i, recipe, self.base), weights_of(self.j, recipe, self.base)

    def training(self, recipe: Recipe) -> TrainConfig:
        return recipe.training("curve")

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {
            "data": setting.data.fed_as,
            "seed": setting.seed_of("curve", self.i, self.j),
            "training": self.training(setting.recipe).key,
            "pin_start": setting.recipe.pin_start,
        }

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        data = setting.data
        trained = fit_curves(
            setting.net,
            [node.ends(setting, parents) for node in group],
            [data.train("curve", node.i, node.j) for node in group],
            pin_start=setting.recipe.pin_start,
            config=config,
            seeds=[setting.seed_of("curve", node.i, node.j) for node in group],
            valid=data.valid(),
            statistics=data.statistics() if data.streams else None,
        )
        made: Made = {}
        for node, curve in zip(group, trained, strict=True):
            middle = trees.prefixed("statistics/", curve.statistics.get(0.5, {}))
            made[node.name] = ArtefactData(trees.prefixed("pin/", curve.pins[0]) | middle)
        return made

    def ends(self, setting: Setting, tensors: Parents) -> tuple[Mode, Mode]:
        start, end = (setting.load_mode(tensors[end.place]) for end in self.parents(setting.recipe))
        return start, end

    def load(self, setting: Setting, tensors: Parents) -> Curve:
        """The curve, with the statistics of its middle."""
        start, end = self.ends(setting, tensors)
        pin, middle = (trees.below(tensors[self.place], f"{part}/") for part in ("pin", "statistics"))
        # In the modes' memory format, which files do not store.
        pin = {name: torch.empty_like(start.params[name]).copy_(tensor) for name, tensor in pin.items()}
        return Curve(start, end, (pin,), {0.5: middle} if middle else {})


@dataclass(frozen=True)
class PointStatistics(Node):
    """Batch norm statistics of a network on a curve; empty for networks without batch norm."""

    i: int
    j: int
    r: float
    base: str = ""
    folder = "points"
    stage = "curves"

    @property
    def name(self) -> str:
        return on_base(self.base, f"{self.i}-{self.j}@{self.r:g}")

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        return PointMember(self.i, self.j, base=self.base).nodes(recipe)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"data": setting.data.fed_as}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        (node,) = group
        curve = Pin(node.i, node.j, node.base).load(setting, parents)
        batches = setting.data.statistics(f"{node.r:g}")
        placed = curve.to(setting.engine.device).with_statistics(setting.placed(), node.r, batches)
        return {node.name: ArtefactData(placed.to("cpu").statistics.get(node.r, {}))}


@dataclass(frozen=True)
class PointMember(OneNetwork):
    """The network at r on the curve between two modes, r counted from the lower number: what bridges imitate.

    >>> PointMember(0, 1, 0.3).name
    'curve-0-1@0.3'
    """

    i: int
    j: int
    r: float = 0.5
    base: str = ""
    family = "with the midpoint itself"
    pattern = rf"{ON_BASE}curve-(?P<i>\d+)-(?P<j>\d+)(?:@(?P<r>[\d.]+))?"
    usable = False

    def __post_init__(self) -> None:
        i, j = sorted((self.i, self.j))
        vars(self).update(i=i, j=j)

    @property
    def name(self) -> str:
        return on_base(self.base, f"curve-{self.i}-{self.j}" + ("" if self.r == 0.5 else f"@{self.r:g}"))

    def made_from(self, recipe: Recipe) -> tuple[Member, ...]:
        return mode_on(self.base, self.i), mode_on(self.base, self.j)

    def nodes(self, recipe: Recipe) -> tuple[Node, ...]:
        pin = Pin(self.i, self.j, self.base)
        # The ends have their own statistics, and training estimates those of the midpoint.
        statistics = () if self.r in (0.0, 0.5, 1.0) else (PointStatistics(self.i, self.j, self.r, self.base),)
        return (pin, *pin.parents(recipe), *statistics)

    def load(self, setting: Setting, tensors: Parents) -> Mode:
        curve = Pin(self.i, self.j, self.base).load(setting, tensors)
        if estimated := tensors.get(PointStatistics(self.i, self.j, self.r, self.base).place):
            curve = replace(curve, statistics={self.r: estimated})
        return curve.at(self.r)

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Self]:
        return [cls(i, j) for i, j in recipe.curves()] if recipe.paper else []

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        if not recipe.paper:
            return []
        point, note = cls(*recipe.curves()[0]), "the network itself that the first bridge imitates"
        modes = [mode.name for mode in point.made_from(recipe)]
        names = {m: f"{networks(m)} + the midpoint of a curve" for m in (1, 2)}
        return [Row(names[m], (*modes[:m], point.name), cls.family, (LAST, m - 3), note) for m in (1, 2)]
