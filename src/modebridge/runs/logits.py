"""What a run computes from its members: their logits, each network run once per batch, and the data of its figures."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from modebridge import trees
from modebridge.batches import size_of
from modebridge.bridges import Bridge
from modebridge.ensembles import Bases, Output, features_of
from modebridge.members import (
    ArtefactData,
    Loaded,
    Made,
    Member,
    ModeMember,
    Node,
    Parents,
    Pin,
    PointMember,
    Setting,
    identity,
    members_of,
    nodes_of,
)
from modebridge.modes import Mode
from modebridge.recipes import Recipe
from modebridge.scoring import curve_profile
from modebridge.training import Epoch, Report, TrainConfig
from modebridge.types import Inputs

POSITIONS = 11
"""Number of networks to score on each curve."""
SAMPLES = 6


def everything_in(recipe: Recipe) -> list[Node]:
    """All artifacts of a complete run of a recipe, without those that they are made from."""
    curves = recipe.curves() if recipe.paper else []
    figures = [*(CurveProfile(i, j) for i, j in curves), SampleImages(*recipe.curves()[0])]
    return [*map(Logits, members_of(recipe)), Labels(), *figures]


@dataclass(frozen=True)
class MemberLogits(Node):
    """The logits of a member on some images; a subclass tells which."""

    member: Member
    one_core = False
    together = "all"  # members share networks, and images are read or corrupted once

    @property
    def name(self) -> str:
        return self.member.name

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        return nodes_of((self.member, *self.member.reads, *self.member.made_from(recipe)), recipe)


@dataclass(frozen=True)
class Logits(MemberLogits):
    """The logits of a member on the validation and the test split: (N, K), or (H, N, K) for several heads."""

    folder = "logits"
    stage = "scores"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"scored_on": setting.data.scored_on}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        loaded = {one: one.load(setting, parents) for one in with_reads([node.member for node in group])}
        splits = {"valid": setting.data.valid(), "test": setting.data.test()}
        batches = ((split, inputs) for split, feed in splits.items() for inputs, _ in feed)
        tables = predict(setting, loaded, batches, sum(map(len, splits.values())), config.callbacks)
        ancestors = {node.member: node.member.made_from(setting.recipe) for node in group}
        wanted = {one for some in ancestors.values() for one in some} - loaded.keys()
        loaded |= {one: one.load(setting, parents) for one in wanted}
        ids = {member: identity(member, one) for member, one in loaded.items()}
        results: Made = {}
        for member, made_from in ancestors.items():
            cost = member.cost(setting)
            metadata = {
                "flops": cost.flops,
                "params": cost.params,
                "reads": [read.name for read in member.reads],
                "id": ids[member],
                "scored_on": setting.data.scored_on,
                # The ids of its ancestors, so that a reader can tell if a mode was replaced.
                "parents": {ancestor.name: ids[ancestor] for ancestor in made_from},
            }
            results[member.name] = ArtefactData(tables[member.name], metadata)
        return results


@dataclass(frozen=True)
class Labels(Node):
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
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        labels = {split: setting.data.labels(split) for split in ("valid", "test")}
        return {"labels": ArtefactData(labels, {"scored_on": setting.data.scored_on})}


@dataclass(frozen=True)
class CurveFigure(Node):
    """The data of a figure about the curve between two modes."""

    i: int
    j: int
    stage = "figures"

    @property
    def name(self) -> str:
        return f"{self.i}-{self.j}"


@dataclass(frozen=True)
class CurveProfile(CurveFigure):
    """Validation scores of networks along a curve."""

    folder = "profiles"

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        return PointMember(self.i, self.j).nodes(recipe)

    def ingredients(self, setting: Setting) -> dict[str, object]:
        data = setting.data
        return {"positions": POSITIONS, "scored_on": data.scored_on, "learned_from": data.learned_from}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        (node,) = group
        curve = Pin(node.i, node.j).load(setting, parents).to(setting.engine.device)
        points = curve_profile(setting.placed(), curve, setting.data.valid(), POSITIONS, setting.data.statistics())
        table = torch.tensor([[point.r, point.nll, point.accuracy] for point in points], dtype=torch.float64)
        return {node.name: ArtefactData({"points": table}, {"columns": ["r", "nll", "accuracy"]})}


@dataclass(frozen=True)
class SampleImages(CurveFigure):
    """The test images on which the ends of a curve disagree most; empty if inputs are not images."""

    folder = "samples"
    one_core = False

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        return Logits(ModeMember(self.i)), Logits(ModeMember(self.j))

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"scored_on": setting.data.scored_on, "count": SAMPLES}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        (node,) = group
        logits = [parents[parent.place]["test"] for parent in node.parents(setting.recipe)]
        one, other = (table.double().softmax(dim=-1) for table in logits)
        numbers = (one - other).abs().sum(dim=1).topk(min(SAMPLES, len(one))).indices.sort().values
        images = [image for number in numbers if (image := setting.data.image(int(number))) is not None]
        return {node.name: ArtefactData({"images": torch.stack(images), "numbers": numbers} if images else {})}


def with_reads(members: Sequence[Member]) -> list[Member]:
    """Some members, then those that they read."""
    return list(dict.fromkeys([*members, *(read for member in members for read in member.reads)]))


@torch.no_grad()
def predict(
    setting: Setting,
    loaded: Mapping[Member, Loaded],
    batches: Iterable[tuple[str, Inputs]],
    total: int,
    callbacks: Sequence[Report] = (),
) -> dict[str, dict[str, Tensor]]:
    """The logits of members on some batches; a network runs once per batch, however many members use it.

    Each batch comes with the name of the table for its logits; callbacks count it as one of `total` epochs. The result
    is by member and table: (N, K) logits, or (H, N, K) for several heads.
    """
    device = setting.engine.device
    placed = {member: one.to(device) for member, one in loaded.items()}
    taps = [tap for one in placed.values() if isinstance(one, Bridge) for tap in one.taps]
    bases = Bases(setting.placed(), {member: one for member, one in placed.items() if isinstance(one, Mode)}, taps)

    def heads(member: Member, inputs: Inputs, outputs: Mapping[Member, Output]) -> Sequence[Tensor] | Tensor:
        one = placed[member]
        if isinstance(one, Mode):
            return [outputs[member][0]]
        if isinstance(one, Bridge):
            return one.head_logits(*features_of(one, member.reads, outputs))
        return one.members(inputs)  # type: ignore[no-any-return, operator]

    images = 0
    start = time.perf_counter()
    parts: dict[str, dict[str, list[Tensor]]] = {member.name: {} for member in placed}
    for done, (table, inputs) in enumerate(batches, start=1):
        outputs = bases(inputs)
        for member in placed:
            logits = [trees.wide(head).cpu() for head in heads(member, inputs, outputs)]
            joined = logits[0] if len(logits) == 1 else torch.stack(logits)
            parts[member.name].setdefault(table, []).append(joined)
        images += size_of(inputs)
        for callback in callbacks:
            callback(Epoch(done, total, 0.0, {}, images=images, seconds=time.perf_counter() - start))
    for one in placed.values():
        one.to("cpu")
    return {name: {table: torch.cat(pieces, -2) for table, pieces in tables.items()} for name, tables in parts.items()}
