"""The logits of members on corrupted test images and on images of other sets, in one table each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from modebridge.data import CORRUPTIONS, SEVERITIES
from modebridge.members import Member
from modebridge.runs.logits import OtherLogits, ShiftedLogits
from modebridge.runs.run import Run
from modebridge.scoring import LogitTable

__all__ = ["ShiftedAnswers", "shifted_answers"]


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
    wanted = list(dict.fromkeys([*members, *(needed for member in members for needed in member.needs)]))
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
