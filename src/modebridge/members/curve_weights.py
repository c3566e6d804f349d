"""The pins of curves between modes: trained on labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from modebridge.curves import Curve
from modebridge.members.artefact import Artefact, ArtefactData, Parents, TrainedWeights
from modebridge.members.mode_member import on_base, weights_of
from modebridge.members.setting import Setting
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig, fit_curves

__all__ = ["CurveWeights", "curve_and_ends"]


def curve_and_ends(i: int, j: int, recipe: Recipe, base: str = "") -> tuple[Artefact, ...]:
    """All artefacts needed to load a curve."""
    curve = CurveWeights(i, j, base)
    return (curve, *curve.ends(recipe))


@dataclass(frozen=True)
class CurveWeights(TrainedWeights):
    """The pin of a Bezier curve between two modes, the lower number first."""

    i: int
    j: int
    base: str = ""
    folder = "curves"
    stage = "curves"

    @property
    def name(self) -> str:
        """The numbers of its ends."""
        return on_base(self.base, f"{self.i}-{self.j}")

    def ends(self, recipe: Recipe) -> tuple[Artefact, Artefact]:
        """The modes that it connects."""
        return weights_of(self.i, recipe, self.base), weights_of(self.j, recipe, self.base)

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its ends."""
        return self.ends(recipe)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Data, seed, training, and the initial pin."""
        return {
            "data": setting.data.fed_as,
            "seed": setting.seed_of("curve", self.i, self.j),
            "training": self.training(setting.recipe).key,
            "pin_start": setting.recipe.pin_start,
        }

    def training(self, recipe: Recipe) -> TrainConfig:
        """As set in the recipe."""
        return recipe.training("curve")

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Train them, and estimate the statistics of their midpoints."""
        recipe, data = setting.recipe, setting.data
        trained = fit_curves(
            setting.net,
            [artefact._loaded_ends(setting, parents) for artefact in group],
            [data.train("curve", artefact.i, artefact.j) for artefact in group],
            pin_start=recipe.pin_start,
            config=config,
            seeds=[setting.seed_of("curve", artefact.i, artefact.j) for artefact in group],
            valid=data.valid(),
            statistics=data.statistics() if data.streams else None,
        )
        return {artefact.name: _made(curve) for artefact, curve in zip(group, trained, strict=True)}

    def _loaded_ends(self, setting: Setting, parents: Parents) -> tuple[Mode, Mode]:
        start, end = (setting.load_mode(parents[end.place]) for end in self.ends(setting.recipe))
        return start, end


def _made(curve: Curve) -> ArtefactData:
    return ArtefactData(
        {
            **{f"pin/{key}": tensor for key, tensor in curve.pins[0].items()},
            **{f"statistics/{key}": tensor for key, tensor in curve.statistics.get(0.5, {}).items()},
        }
    )
