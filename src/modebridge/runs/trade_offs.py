"""Elastic predictions from the logits of a run's members: temperatures, thresholds, and trade-offs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from modebridge.deploy import Temperatures, fit_temperatures
from modebridge.ensembles import Mean, average
from modebridge.members import parse_member
from modebridge.scoring import LogitTable, Split

__all__ = ["temperatures_of"]


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
    return fit_temperatures(tables, answers.valid_labels, heads)


def _tables(answers: LogitTable, names: Sequence[str], split: Split, mean: Mean = "probability") -> Tensor:
    """(M, N, K) probabilities in float64: one table per network, and one per head of a bridge."""
    tables: list[Tensor] = []
    for name in names:
        if parse_member(name).reads:
            tables += [average([head.double().softmax(dim=-1)], mean) for head in answers.heads(name, split)]
        else:
            tables.append(answers.probabilities([name], split))
    return torch.stack(tables)
