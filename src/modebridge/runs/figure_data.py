"""What the page needs that requires the data set and the weights: curve profiles and sample images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from modebridge.members import (
    Artefact,
    ArtefactData,
    ModeMember,
    Parents,
    Setting,
    curve_and_ends,
    load_curve,
    members_of,
)
from modebridge.recipes import Recipe
from modebridge.runs.logits import Labels, Logits
from modebridge.scoring import curve_profile
from modebridge.training import TrainConfig

__all__ = ["CurveProfile", "SampleImages", "everything_in", "figure_data"]

POSITIONS = 11
"""Number of networks to score on each curve."""
SAMPLES = 6


def figure_data(recipe: Recipe) -> list[Artefact]:
    """All artefacts for the figures of a recipe."""
    return [*(CurveProfile(i, j) for i, j in recipe.curves()), SampleImages(*recipe.curves()[0])]


def everything_in(recipe: Recipe) -> list[Artefact]:
    """All artefacts of a complete run of a recipe, without those that they are made from."""
    return [*map(Logits, members_of(recipe)), Labels(), *figure_data(recipe)]


@dataclass(frozen=True)
class CurveProfile(Artefact):
    """Validation scores of networks along a curve."""

    i: int
    j: int
    folder = "profiles"
    stage = "figures"
    counted = True

    @property
    def name(self) -> str:
        """The name of the curve."""
        return f"{self.i}-{self.j}"

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The curve and its ends."""
        return curve_and_ends(self.i, self.j, recipe)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Positions and images."""
        return {
            "positions": POSITIONS,
            "scored_on": setting.data.scored_on,
            "learned_from": setting.data.learned_from,
        }

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Score them."""
        results: dict[str, ArtefactData] = {}
        for artefact in group:
            curve = load_curve(setting, parents, artefact.i, artefact.j).to(setting.engine.device)
            points = curve_profile(setting.placed(), curve, setting.data.valid(), POSITIONS, setting.data.statistics())
            table = torch.tensor([[point.r, point.nll, point.accuracy] for point in points], dtype=torch.float64)
            results[artefact.name] = ArtefactData({"points": table}, {"columns": ["r", "nll", "accuracy"]})
        return results


@dataclass(frozen=True)
class SampleImages(Artefact):
    """The test images on which the ends of a curve disagree most; empty if inputs are not images."""

    i: int
    j: int
    folder = "samples"
    stage = "figures"
    one_core = False

    @property
    def name(self) -> str:
        """The name of the curve."""
        return f"{self.i}-{self.j}"

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The logits of the ends."""
        return Logits(ModeMember(self.i)), Logits(ModeMember(self.j))

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """The images."""
        return {"scored_on": setting.data.scored_on, "count": SAMPLES}

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Find them."""
        results: dict[str, ArtefactData] = {}
        for artefact in group:
            one, other = (
                parents[parent.place]["test"].double().softmax(dim=-1) for parent in artefact.parents(setting.recipe)
            )
            numbers = (one - other).abs().sum(dim=1).topk(min(SAMPLES, len(one))).indices.sort().values
            images = [image for number in numbers if (image := setting.data.image(int(number))) is not None]
            tensors = {"images": torch.stack(images), "numbers": numbers} if images else {}
            results[artefact.name] = ArtefactData(tensors)
        return results
