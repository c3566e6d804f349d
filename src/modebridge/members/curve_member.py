"""Curves between modes, and the networks on them, which bridges imitate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from modebridge.curves import Curve
from modebridge.members.artefact import Artefact, ArtefactData, Parents, Tensors
from modebridge.members.curve_weights import CurveWeights, curve_and_ends
from modebridge.members.member import LAST, Member
from modebridge.members.mode_member import OneNetwork, mode_on, on_base, split_base
from modebridge.members.predictor import NetworkPredictor
from modebridge.members.setting import Setting
from modebridge.recipes import Recipe
from modebridge.scoring import Row
from modebridge.training import TrainConfig

__all__ = ["PointMember", "PointStatistics", "load_curve"]


@dataclass(frozen=True)
class PointStatistics(Artefact):
    """Batch norm statistics of a network on a curve; empty for networks without batch norm."""

    i: int
    j: int
    r: float
    base: str = ""
    folder = "points"
    stage = "curves"

    @property
    def name(self) -> str:
        """The curve and the position."""
        return on_base(self.base, f"{self.i}-{self.j}@{self.r:g}")

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The curve and its ends."""
        return curve_and_ends(self.i, self.j, recipe, self.base)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """The images to estimate them on."""
        return {"data": setting.data.fed_as}

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Estimate them on the training images."""
        (artefact,) = group
        curve = load_curve(setting, parents, artefact.i, artefact.j, base=artefact.base)
        batches = setting.data.statistics(f"{artefact.r:g}")
        placed = curve.to(setting.engine.device).with_statistics(setting.placed(), artefact.r, batches)
        return {artefact.name: ArtefactData(placed.to("cpu").statistics.get(artefact.r, {}))}


def load_curve(
    setting: Setting, tensors: Mapping[str, Tensors], i: int, j: int, r: float = 0.5, base: str = ""
) -> Curve:
    """The curve between two modes, ready for evaluation at r."""
    curve = CurveWeights(i, j, base)
    start, end = (setting.load_mode(tensors[end.place]) for end in curve.ends(setting.recipe))
    parts: dict[str, dict[str, Tensor]] = {"pin": {}, "statistics": {}}
    for name, tensor in tensors[curve.place].items():
        part, _, rest = name.partition("/")
        parts[part][rest] = tensor
    # In the modes' memory format, which files do not store.
    pin = {name: torch.empty_like(start.params[name]).copy_(tensor) for name, tensor in parts["pin"].items()}
    statistics: dict[float, Tensors] = {0.5: parts["statistics"]} if parts["statistics"] else {}
    estimated = tensors.get(PointStatistics(i, j, r, base).place)
    if estimated:
        statistics[r] = estimated
    return Curve(start, end, (pin,), statistics)


@dataclass(frozen=True)
class PointMember(OneNetwork):
    """The network at r on the curve between two modes, r counted from the lower number: what bridges imitate.

    Args:
        i: the mode at r = 0.
        j: the mode at r = 1.
        r: the position.
        base: the base of the modes; "" for that of the recipe.

    >>> PointMember(0, 1, 0.3).name
    'curve-0-1@0.3'
    """

    i: int
    j: int
    r: float = 0.5
    base: str = ""
    family = "with the midpoint itself"
    usable = False

    def __post_init__(self) -> None:
        i, j = sorted((self.i, self.j))
        vars(self).update(i=i, j=j)

    @property
    def name(self) -> str:
        """The curve, and the position if it is not the middle."""
        return on_base(self.base, f"curve-{self.i}-{self.j}" + ("" if self.r == 0.5 else f"@{self.r:g}"))

    @property
    def ancestors(self) -> tuple[Member, ...]:
        """The ends."""
        return mode_on(self.base, self.i), mode_on(self.base, self.j)

    def artefacts(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The curve with the statistics at r."""
        # The ends have their own statistics, and training estimates those of the midpoint.
        statistics = () if self.r in (0.0, 0.5, 1.0) else (PointStatistics(self.i, self.j, self.r, self.base),)
        return (*curve_and_ends(self.i, self.j, recipe, self.base), *statistics)

    def load(self, setting: Setting, tensors: Mapping[str, Tensors]) -> NetworkPredictor:
        """The network."""
        curve = load_curve(setting, tensors, self.i, self.j, self.r, self.base)
        return NetworkPredictor(self.name, curve.at(self.r))

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """From "curve-0-1" or "swa-curve-0-1@0.3"."""
        base, rest = split_base(name)
        match = re.fullmatch(r"curve-(\d+)-(\d+)(?:@([\d.]+))?", rest)
        return cls(int(match[1]), int(match[2]), float(match[3] or 0.5), base) if match else None

    @classmethod
    def of(cls, recipe: Recipe) -> Sequence[Member]:
        """The midpoint of every curve."""
        return [cls(i, j) for i, j in recipe.curves()]

    @classmethod
    def rows(cls, recipe: Recipe) -> Sequence[Row]:
        """One and two networks with the midpoint of the first curve."""
        i, j = recipe.curves()[0]
        modes = cls(i, j).ancestors
        notes = "the network that the first bridge imitates", "the network that the bridges imitate"
        return [
            Row(
                f"DE-{m} + midpoint",
                (*(mode.name for mode in modes[:m]), cls(i, j).name),
                cls.family,
                (LAST, m - 3),
                notes[m - 1],
            )
            for m in (1, 2)
        ]
