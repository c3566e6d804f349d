"""The logits of members on the held-out images: one pass over each split, every network run once per batch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from modebridge import trees
from modebridge.batches import size_of
from modebridge.ensembles import Bases, mean_probability
from modebridge.members import Artefact, ArtefactData, Member, Parents, Predictor, Setting
from modebridge.recipes import Recipe
from modebridge.scoring import accuracy, nll
from modebridge.training import Epoch, Report, TrainConfig
from modebridge.types import Inputs

__all__ = ["Labels", "Logits", "MemberLogits", "predict"]


@dataclass(frozen=True)
class MemberLogits(Artefact):
    """The logits of a member on some images; a subclass tells which."""

    member: Member
    one_core = False
    together = "all"  # members share networks, and images are read or corrupted once

    @property
    def name(self) -> str:
        """The name of the member."""
        return self.member.name

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """All artefacts needed to load it, and those of the members that it is made from."""
        members = (self.member, *self.member.needs, *self.member.made_from(recipe))
        return tuple(dict.fromkeys(needed for member in members for needed in member.artefacts(recipe)))


@dataclass(frozen=True)
class Logits(MemberLogits):
    """The logits of a member on the validation and the test split: (N, K), or (H, N, K) for several heads."""

    folder = "logits"
    stage = "scores"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """The images."""
        return {"scored_on": setting.data.scored_on}

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Load the members, run them, and record cost and identity of each."""
        predictors = {artefact.name: artefact.member.load(setting, parents) for artefact in group}
        splits = {"valid": setting.data.valid(), "test": setting.data.test()}
        batches = ((split, inputs) for split, feed in splits.items() for inputs, _ in feed)
        tables = predict(setting, predictors, batches, sum(map(len, splits.values())), config.callbacks)
        ids: dict[str, str] = {name: predictor.id for name, predictor in predictors.items()}
        labels = {split: setting.data.labels(split) for split in ("valid", "test")}
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
                "scores": _alone(tables[member.name], labels),
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
        """The members' logits are in the same folder."""
        return "labels"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        """The images."""
        return {"scored_on": setting.data.scored_on}

    @classmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Take them from the data."""
        labels = {split: setting.data.labels(split) for split in ("valid", "test")}
        return {"labels": ArtefactData(labels, {"scored_on": setting.data.scored_on})}


def _alone(tables: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> dict[str, float]:
    """The scores of a member alone, before calibration, for users who look into its meta.json."""
    scores: dict[str, float] = {}
    for split, logits in tables.items():
        heads = logits if logits.ndim == 3 else logits[None]
        table = mean_probability(heads.double().softmax(dim=-1))
        scores |= {f"{split}_accuracy": accuracy(table, labels[split]), f"{split}_nll": nll(table, labels[split])}
    return scores


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
        callbacks: called after every batch.

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
