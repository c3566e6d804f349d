"""The pins of curves between modes: trained on labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from modebridge.curves import BezierCurve, Polychain
from modebridge.members.artefact import Artefact, ArtefactData, Making, TrainedWeights
from modebridge.members.context import Context
from modebridge.members.mode_member import on_base, weights_of
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

    def ingredients(self, context: Context) -> dict[str, object]:
        """Data, seed, training, and the initial pin."""
        return {
            "data": context.data.fed_as,
            "seed": context.seed_of("curve", self.i, self.j),
            "training": str(context.recipe.curve),
            "pin_start": context.recipe.pin_start,
        }

    def training(self, recipe: Recipe) -> TrainConfig:
        """As set in the recipe."""
        return recipe.curve

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, ArtefactData]:
        """Train them, and estimate the statistics of their midpoints."""
        context, recipe, data = making.context, making.context.recipe, making.context.data
        trained = fit_curves(
            context.net,
            [artefact._loaded_ends(making) for artefact in group],
            [data.train("curve", artefact.i, artefact.j) for artefact in group],
            pin_start=recipe.pin_start,
            config=recipe.curve,
            seeds=[context.seed_of("curve", artefact.i, artefact.j) for artefact in group],
            valid=data.valid(),
            statistics=data.statistics() if data.streams else None,
            engine=context.engine,
            checkpoints=making.checkpoints,
            report=making.report,
        )
        return {artefact.name: _made(curve) for artefact, curve in zip(group, trained, strict=True)}

    def _loaded_ends(self, making: Making) -> tuple[Mode, Mode]:
        start, end = (making.context.load_mode(making.parents[end.place]) for end in self.ends(making.context.recipe))
        return start, end


def _made(curve: BezierCurve | Polychain) -> ArtefactData:
    return ArtefactData(
        {
            **{f"pin/{key}": tensor for key, tensor in curve.pins[0].items()},
            **{f"statistics/{key}": tensor for key, tensor in curve.statistics.get(0.5, {}).items()},
        }
    )
