"""Elastic answers from what the members of a run said: temperatures, thresholds, and what they buy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from modebridge.deploy import ALL, Temperatures, TradeOff, choose_threshold, fit_temperatures, trade_off
from modebridge.evaluate import Answers
from modebridge.recipes.members import Member
from modebridge.report import Row

__all__ = ["elastic_lines", "temperatures_of", "threshold_for"]

STEPS = 20
"""Points of a trade-off curve, beside its ends."""


def temperatures_of(answers: Answers, names: Sequence[str]) -> Temperatures:
    """A temperature for the first mode and for every number of bridges, from the validation split.

    Args:
        answers: of a run.
        names: of the members, modes first.
    """
    bases = sum(Member.parse(name).kind == "mode" for name in names)
    return fit_temperatures(_tables(answers, names, "valid"), answers.valid_labels, bases)


def threshold_for(answers: Answers, names: Sequence[str], average_cost: float) -> float:
    """The threshold at which members cost so much on average, in networks, on the validation images."""
    return choose_threshold(_confidences(answers, names[0]), 1.0, answers.cost(names)[0] - 1.0, average_cost)


def elastic_lines(answers: Answers, rows: Sequence[Row]) -> dict[str, list[TradeOff]]:
    """What asking the other members only about unsure images buys on the test split, a line a row of the table.

    Temperatures and thresholds are those of the validation split; the test split only scores them. The rows are the
    first mode with its most bridges, with a second mode, and with the bridge between the two.
    """
    bridged = [row for row in rows if row.name.startswith("DE-1 + ") and row.name.endswith("I")]
    wanted = [*bridged[-1:], *[row for row in rows if row.name in ("DE-2", "DE-2 + 1 bridge II")]]
    lines = {}
    for row in wanted:
        temperatures, extra = temperatures_of(answers, row.members), answers.cost(row.members)[0] - 1.0
        top = _confidences(answers, row.members[0])
        costs = [1.0 + extra * k / STEPS for k in range(STEPS)]
        thresholds = dict.fromkeys(choose_threshold(top, 1.0, extra, cost) for cost in costs)
        tables = _tables(answers, row.members, "test")
        bases = len(row.members) + 1 - len(temperatures.by_bridges)
        lines[row.name] = trade_off(
            tables, answers.test_labels, bases, temperatures, 1.0, extra, thresholds=[0.0, *thresholds, ALL]
        )
    return lines


def _confidences(answers: Answers, first: str) -> Tensor:
    """The calibrated top probabilities of a mode on the validation images."""
    return answers.calibrated([first], "valid").amax(dim=-1)


def _tables(answers: Answers, names: Sequence[str], split: str) -> Tensor:
    """(M, N, K) probabilities in float64."""
    return torch.stack([answers.probabilities([name], split) for name in names])
