"""Elastic predictions from the logits of a run's members: temperatures, thresholds, and trade-offs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from modebridge.deploy import ALL, Temperatures, TradeOff, choose_threshold, fit_temperatures, trade_off
from modebridge.ensembles import Mean, average
from modebridge.members import parse_member, row_plans
from modebridge.recipes import Recipe
from modebridge.scoring import LogitTable

__all__ = ["elastic_lines", "temperatures_of"]

STEPS = 20
"""Points of a trade-off curve, in addition to its ends."""


def temperatures_of(answers: LogitTable, names: Sequence[str], mean: Mean = "probability") -> Temperatures:
    """A temperature for the first mode and for every number of bridges, from the validation split.

    Args:
        answers: the predictions of a run.
        names: names of the members, modes first.
        mean: how members are averaged.
    """
    bridges = [name for name in names if parse_member(name).reads]
    heads = [len(answers.heads(name, "valid")) for name in bridges]
    tables = _tables(answers, names, "valid", mean)
    return fit_temperatures(tables, answers.valid_labels, len(names) - len(bridges), mean, heads)


def elastic_lines(answers: LogitTable, recipe: Recipe) -> dict[str, list[TradeOff]]:
    """The gain on the test split from running the other members only on uncertain images, one line per table row.

    Temperatures and thresholds come from the validation split; the test split is only used for scores.
    """
    lines = {}
    for plan in row_plans(recipe):
        members = [member.name for member in plan.members]
        if not plan.elastic or not set(members) <= set(answers.test):
            continue
        if any(len(answers.heads(name)) > 1 for name in members if not parse_member(name).reads):
            continue  # in an elastic file only bridges have several heads
        temperatures, extra = temperatures_of(answers, members), answers.cost(members)[0] - 1.0
        top = answers.calibrated(members[:1], "valid").amax(dim=-1)
        costs = [1.0 + extra * k / STEPS for k in range(STEPS)]
        thresholds = dict.fromkeys(choose_threshold(top, 1.0, extra, cost) for cost in costs)
        tables = _tables(answers, members, "test")
        bases = len(members) + 1 - len(temperatures.by_bridges)
        lines[plan.name] = trade_off(
            tables, answers.test_labels, bases, temperatures, 1.0, extra, thresholds=[0.0, *thresholds, ALL]
        )
    return lines


def _tables(answers: LogitTable, names: Sequence[str], split: str, mean: Mean = "probability") -> Tensor:
    """(M, N, K) probabilities in float64: one table per network, and one per head of a bridge."""
    tables: list[Tensor] = []
    for name in names:
        if parse_member(name).reads:
            tables += [average([head.double().softmax(dim=-1)], mean) for head in answers.heads(name, split)]
        else:
            tables.append(answers.probabilities([name], split, mean=mean))
    return torch.stack(tables)
