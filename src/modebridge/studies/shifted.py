"""The logits of members on corrupted test images and on images of other sets, in one table each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from modebridge.data import CORRUPTIONS, SEVERITIES
from modebridge.members import ArtefactData, Made, Member, Parents, Setting
from modebridge.recipes.shifted import file_name_of
from modebridge.runs.logits import MemberLogits, load, predict
from modebridge.runs.run import Run
from modebridge.scoring import LogitTable
from modebridge.training import TrainConfig

__all__ = ["OtherLogits", "ShiftedAnswers", "ShiftedLogits", "shifted_answers"]


@dataclass(frozen=True)
class ShiftedLogits(MemberLogits):
    """The logits of a member on the test images under every corruption and severity, with tables such as "noise-1".

    In half precision, with the highest logit of each row subtracted (probabilities are the same), so that values near
    the top, which determine scores, are the most precise.
    """

    folder = "shifted"
    stage = "shifted scores"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"images": setting.shifted.key}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        loaded = load([node.member for node in group], setting, parents)
        data = setting.shifted
        tables = predict(setting, loaded, data.corrupted(), data.batches, config.callbacks)
        halves = {name: {key: _half(logits) for key, logits in table.items()} for name, table in tables.items()}
        return {node.name: ArtefactData(halves[node.name]) for node in group}


@dataclass(frozen=True)
class OtherLogits(MemberLogits):
    """The logits of a member on the images of another set, in half precision."""

    other: str
    folder = "others"
    stage = "other sets"

    @property
    def name(self) -> str:
        return f"{self.member.name}--{file_name_of(self.other)}"

    def ingredients(self, setting: Setting) -> dict[str, object]:
        return {"images": setting.shifted.other_key(self.other)}

    @classmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        loaded = load([node.member for node in group], setting, parents)
        device = setting.engine.device
        parts = {other: setting.shifted.other_batches(other) for other in dict.fromkeys(one.other for one in group)}
        batches = ((other, images.to(device)) for other, pieces in parts.items() for images in pieces)
        tables = predict(setting, loaded, batches, sum(map(len, parts.values())), config.callbacks)
        return {one.name: ArtefactData({"logits": _half(tables[one.member.name][one.other])}) for one in group}


@dataclass(frozen=True)
class ShiftedAnswers:
    """The predictions of members on images outside the training distribution.

    Args:
        clean: for the test images that are corrupted, without corruption.
        corrupted: for the same images by corruption and severity, such as "noise-1"; calibrated like `clean`.
        whole: for all validation and test images.
        others: for the images of other sets by name; these have no correct labels.
    """

    clean: LogitTable
    corrupted: Mapping[str, LogitTable]
    whole: LogitTable
    others: Mapping[str, LogitTable]


def shifted_answers(run: Run, members: Sequence[Member], others: Sequence[str]) -> ShiftedAnswers:
    """The predictions of members on corrupted and other images: from the folder, or computed now.

    Args:
        run: the run; makes what is missing.
        members: the members; those that they read are added.
        others: other sets, from `known_others`.
    """
    whole = run.answers(members)
    wanted = list(dict.fromkeys([*members, *(read for member in members for read in member.reads)]))
    corruptions = [f"{name}-{severity}" for name in CORRUPTIONS for severity in SEVERITIES]
    tables = run.tensors([ShiftedLogits(member) for member in wanted])
    numbers = run.setting.shifted.numbers
    labels = whole.test_labels[numbers]
    clean = whole.on({name: logits.index_select(-2, numbers) for name, logits in whole.test.items()}, labels)
    corrupted = {
        name: clean.on({m.name: tables[ShiftedLogits(m).place][name] for m in wanted}, labels) for name in corruptions
    }
    tables = run.tensors([OtherLogits(member, other) for other in others for member in wanted])
    others_by_name: dict[str, LogitTable] = {}
    for other in others:
        test = {m.name: tables[OtherLogits(m, other).place]["logits"] for m in wanted}
        count = next(iter(test.values())).shape[-2]
        # No label is correct: -1 is an invalid class, so that scoring against labels raises an error.
        others_by_name[other] = whole.on(test, torch.full((count,), -1))
    return ShiftedAnswers(clean, corrupted, whole, others_by_name)


def _half(logits: Tensor) -> Tensor:
    lowest = torch.finfo(torch.float16).min
    return (logits - logits.amax(dim=-1, keepdim=True)).clamp(min=lowest).half()
