"""The pins of curves between modes: trained on labels or, between students, on their teachers' predictions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from modebridge.curves import BezierCurve, Polychain
from modebridge.members.artefact import Artefact, ArtefactData, Making, TrainedWeights
from modebridge.members.context import Blueprint, Context
from modebridge.members.mode_member import BASES, on_base, weights_of
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig, fit_curves, fit_taught_curves

__all__ = ["CurveWeights", "TaughtCurveWeights", "curve_and_ends"]

TAUGHT = "distilled"
"""The base whose modes are students."""


def curve_and_ends(i: int, j: int, recipe: Recipe, base: str = "") -> tuple[Artefact, ...]:
    """All artefacts needed to load a curve."""
    # A curve learns what its ends learned unless the recipe's `curve_loss` differs.
    taught = (base or recipe.base) == TAUGHT and recipe.curve_loss == "ends"
    curve = TaughtCurveWeights(i, j, base) if taught else CurveWeights(i, j, base)
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
        for artefact in group:
            if (artefact.base or recipe.base) == TAUGHT:
                warnings.warn(
                    f"Curve {artefact.name} learns labels between modes that learned from teachers: on digits, such "
                    "curves have a worse middle than taught ones; remove curve_loss=labels.",
                    stacklevel=2,
                )
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


@dataclass(frozen=True)
class TaughtCurveWeights(CurveWeights):
    """The pin of a curve between two students, trained with the loss of students; all missing ones in one pass."""

    one_pass = True

    def teachers(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The teachers of its ends."""
        return BASES[TAUGHT](self.i).parents(recipe)

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """Its ends and their teachers."""
        return *self.ends(recipe), *self.teachers(recipe)

    def ingredients(self, context: Context) -> dict[str, object]:
        """Those of other curves, with the seed of the shared pass and the students' mixup."""
        return {
            **super().ingredients(context),
            "taught": context.seed_of("taught curves"),
            "mixup": context.recipe.student_mixup,
        }

    @classmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, ArtefactData]:
        """Train them in one pass, and estimate the statistics of their midpoints."""
        context, recipe, data = making.context, making.context.recipe, making.context.data
        trained = fit_taught_curves(
            context.net,
            {artefact.name: artefact._loaded_ends(making) for artefact in group},
            [context.load_mode(making.parents[teacher.place]) for teacher in group[0].teachers(recipe)],
            data.train("taught curves"),
            mixup=recipe.student_mixup,
            pin_start=recipe.pin_start,
            config=replace(recipe.curve, seed=context.seed_of("taught curves")),
            seeds={artefact.name: context.seed_of("curve", artefact.i, artefact.j) for artefact in group},
            valid=data.valid(),
            statistics=data.statistics() if data.streams else None,
            engine=context.engine,
            checkpoints=making.checkpoints,
            report=making.report,
        )
        return {name: _made(curve) for name, curve in trained.items()}

    @classmethod
    def work(cls, group: Sequence[Self], blueprint: Blueprint) -> float:
        """Forward and backward for each curve, and one forward pass per teacher."""
        return super().work(group, blueprint) + blueprint.base_cost.flops * len(group[0].teachers(blueprint.recipe))


def _made(curve: BezierCurve | Polychain) -> ArtefactData:
    return ArtefactData(
        {
            **{f"pin/{key}": tensor for key, tensor in curve.pins[0].items()},
            **{f"statistics/{key}": tensor for key, tensor in curve.statistics.get(0.5, {}).items()},
        }
    )
