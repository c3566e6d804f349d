"""What a run computes from its members: their logits, each network run once per batch, and the data of its figures."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from modebridge import trees
from modebridge.batches import size_of
from modebridge.ensembles import Bases
from modebridge.members import (
    Artefact,
    ArtefactData,
    Member,
    ModeMember,
    Parents,
    Predictor,
    Setting,
    curve_and_ends,
    load_curve,
    members_of,
)
from modebridge.recipes import Recipe
from modebridge.scoring import curve_profile
from modebridge.training import Epoch, Report, TrainConfig
from modebridge.types import Inputs

__all__ = [
    "CurveProfile",
    "Labels",
    "Logits",
    "MemberLogits",
    "SampleImages",
    "everything_in",
    "figure_data",
    "predict",
]

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
class MemberLogits(Artefact):
    """The logits of a member on some images; a subclass tells which."""

    member: Member
    one_core = False
    together = "all"  # members share networks, and images are read or corrupted once

    @property
    def name(self) -> str:
        return self.member.name

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        members = (self.member, *self.member.needs, *self.member.made_from(recipe))
        return tuple(dict.fromkeys(needed for member in members for needed in member.artefacts(recipe)))


@dataclass(frozen=True)
class Logits(MemberLogits):
    """The logits of a member on the validation and the test split: (N, K), or (H, N, K) for several heads."""

    folder = "logits"
    stage = "scores"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"scored_on": setting.data.scored_on}

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        predictors = {artefact.name: artefact.member.load(setting, parents) for artefact in group}
        splits = {"valid": setting.data.valid(), "test": setting.data.test()}
        batches = ((split, inputs) for split, feed in splits.items() for inputs, _ in feed)
        tables = predict(setting, predictors, batches, sum(map(len, splits.values())), config.callbacks)
        ids: dict[str, str] = {name: predictor.id for name, predictor in predictors.items()}
        results: dict[str, ArtefactData] = {}
        for artefact in group:
            member = artefact.member
            ancestors = member.made_from(setting.recipe)
            for ancestor in ancestors:
                if ancestor.name not in ids:
                    ids[ancestor.name] = ancestor.load(setting, parents).id
            cost = member.cost(setting)
            metadata: dict[str, Any] = {
                "flops": cost.flops,
                "params": cost.params,
                "reads": [needed.name for needed in member.needs],
                "id": ids[member.name],
                "scored_on": setting.data.scored_on,
                # The ids of its ancestors, so that a reader can tell if a mode was replaced.
                "parents": {ancestor.name: ids[ancestor.name] for ancestor in ancestors},
            }
            results[member.name] = ArtefactData(tables[member.name], metadata)
        return results


@dataclass(frozen=True)
class Labels(Artefact):
    """The labels of the validation and the test split."""

    name = "labels"
    folder = "logits"
    stage = "scores"

    @classmethod
    def step(cls) -> str:
        return "labels"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"scored_on": setting.data.scored_on}

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        labels = {split: setting.data.labels(split) for split in ("valid", "test")}
        return {"labels": ArtefactData(labels, {"scored_on": setting.data.scored_on})}


@dataclass(frozen=True)
class CurveProfile(Artefact):
    """Validation scores of networks along a curve."""

    i: int
    j: int
    folder = "profiles"
    stage = "figures"

    @property
    def name(self) -> str:
        return f"{self.i}-{self.j}"

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        return curve_and_ends(self.i, self.j, recipe)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {
            "positions": POSITIONS,
            "scored_on": setting.data.scored_on,
            "learned_from": setting.data.learned_from,
        }

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
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
        return f"{self.i}-{self.j}"

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        return Logits(ModeMember(self.i)), Logits(ModeMember(self.j))

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"scored_on": setting.data.scored_on, "count": SAMPLES}

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
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


@torch.no_grad()
def predict(
    setting: Setting,
    predictors: Mapping[str, Predictor],
    batches: Iterable[tuple[str, Inputs]],
    total: int,
    callbacks: Sequence[Report] = (),
) -> dict[str, dict[str, Tensor]]:
    """The logits of members on some batches; a network runs once per batch, however many members use it.

    Args:
        setting: network and device.
        predictors: predictors by member name.
        batches: batches, each with the name of the table for its logits.
        total: number of batches.
        callbacks: called after every batch, which counts as an epoch of this work.

    Returns:
        By member and table, (N, K) logits, or (H, N, K) for several heads.
    """
    device = setting.engine.device
    placed = {name: predictor.to(device) for name, predictor in predictors.items()}
    taps = [tap for predictor in placed.values() for tap in predictor.taps]
    networks = {name: mode for predictor in placed.values() for name, mode in predictor.networks.items()}
    bases = Bases(setting.placed(), networks, taps)
    images = 0
    start = time.perf_counter()
    parts: dict[str, dict[str, list[list[Tensor]]]] = {name: {} for name in placed}
    for done, (table, inputs) in enumerate(batches, start=1):
        outputs = bases(inputs)
        for name, predictor in placed.items():
            heads = [trees.wide(head).cpu() for head in predictor.heads(inputs, outputs)]
            parts[name].setdefault(table, []).append(heads)
        images += size_of(inputs)
        for callback in callbacks:
            callback(Epoch(done, total, 0.0, {}, images=images, seconds=time.perf_counter() - start))
    for predictor in placed.values():
        predictor.to("cpu")
    return {name: {table: _joined(pieces) for table, pieces in tables.items()} for name, tables in parts.items()}


def _joined(pieces: Sequence[Sequence[Tensor]]) -> Tensor:
    """The heads' logits of all batches."""
    heads = [torch.cat(head) for head in zip(*pieces, strict=True)]
    return heads[0] if len(heads) == 1 else torch.stack(heads)
