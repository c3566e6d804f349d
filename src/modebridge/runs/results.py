"""The main table of a run, and whether its curves are good bridge targets, from the members' logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modebridge.errors import ModebridgeError
from modebridge.members import PointMember, RowPlan, row_plans
from modebridge.recipes import Recipe
from modebridge.report import Row, row_of
from modebridge.scoring import (
    Combined,
    LogitTable,
    accuracy,
    dee,
    interval_of,
    judge_curve,
    resampled_means,
    surprisals,
)

__all__ = ["curve_warnings", "main_rows", "score_row"]


def main_rows(recipe: Recipe, answers: LogitTable) -> list[Row]:
    """The table of a run: deep ensembles first, then the rows of every kind of member whose members all exist."""
    plans = row_plans(recipe)
    reference = [plan for plan in plans if plan.family == plans[0].family]
    needed = [*reference, *(plan for plan in plans if plan.role == "bridge")]
    for plan in needed:
        if not _exists(plan, answers):
            raise ModebridgeError(
                f"Expected a finished run, but it has no members for {plan.name}; finish it: "
                "modebridge run --out FOLDER."
            )
    scored = {plan: score_row(plan, answers) for plan in plans if _exists(plan, answers)}
    levels = [scored[plan].nll for plan in reference]
    more = _compared(scored, answers)
    for plan, combined in scored.items():
        if len(combined.members) > 1:
            other = answers.score(combined.members, threshold=combined.threshold, mean="logarithmic")
            more[plan]["logarithmic_nll"] = other.nll
    return [
        row_of(plan.name, combined, dee(combined.nll, levels), plan.note, plan.family, plan.role, **more[plan])
        for plan, combined in scored.items()
    ]


def score_row(plan: RowPlan, answers: LogitTable) -> Combined:
    """A row on the test split; its temperature, and the threshold of a cascade, come from the validation split."""
    names = [member.name for member in plan.members]
    threshold = None if plan.average_cost is None else answers.threshold(names, plan.average_cost)
    return answers.score(names, threshold=threshold, intervals=True)


def _exists(plan: RowPlan, answers: LogitTable) -> bool:
    return all(member.name in answers.test for member in plan.members)


def _compared(scored: Mapping[RowPlan, Combined], answers: LogitTable) -> dict[RowPlan, dict[str, Any]]:
    """Each row compared with one network, image by image, and relative to the gain from one to two networks."""
    labels = answers.test_labels
    surprise = {
        plan: surprisals(answers.calibrated(combined.members, threshold=combined.threshold), labels)
        for plan, combined in scored.items()
    }
    plans = list(surprise)
    roles = {plan.role: plan for plan in plans}
    gains = resampled_means(torch.stack([surprise[roles["one"]] - surprise[plan] for plan in plans], dim=1))
    gap = gains[:, plans.index(roles["two"])]
    frequency = labels.bincount().double() / len(labels)
    guess = float(-torch.special.xlogy(frequency, frequency).sum())
    more: dict[RowPlan, dict[str, Any]] = {plan: {"guess_nll": guess} for plan in plans}
    for plan, gain in zip(plans, gains.T, strict=True):
        if plan.role != "one":
            more[plan]["gain_interval"] = interval_of(gain)
        # One member may consist of several networks.
        expensive = any(member.alone for member in plan.members) and scored[plan].relative_flops >= 2
        if plan.is_cheap and not expensive and interval_of(gap)[0] > 0:
            more[plan]["closed_interval"] = interval_of(gain / gap)
    return more


def curve_warnings(recipe: Recipe, answers: LogitTable) -> list[str]:
    """Curves that are not low-loss on the validation split, one sentence each: they are poor bridge targets."""
    warnings: list[str] = []
    labels = answers.valid_labels
    for i, j in recipe.curves():
        point = PointMember(i, j)
        if point.name not in answers.valid:
            continue
        start, end = point.ancestors
        accuracies = [accuracy(answers.probabilities([m.name], "valid"), labels) for m in (start, point, end)]
        check = judge_curve(accuracies[1], (accuracies[0] + accuracies[2]) / 2, len(labels))
        if not check.low_loss:
            warnings.append(f"Curve {i}-{j}: {check.sentence}")
    return warnings
