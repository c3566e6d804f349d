"""Assign units of one network to units of another, from their similarities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from modebridge.alignment.groups import Group, Groups

__all__ = ["Similarity", "assign", "quality", "solve"]

Similarity: TypeAlias = Callable[[Group], Tensor | None]
"""Similarities of all units of two networks: (n, n), or (outer, n, outer, n) for a group inside another."""


def assign(similarity: Tensor) -> tuple[Tensor, float]:
    """The one-to-one assignment with the largest sum of similarities (Hungarian), and that sum.

    >>> assign(torch.tensor([[0.1, 0.9], [0.8, 0.2]]))[0]
    tensor([1, 0])
    """
    # Imported here: it takes half a second, and most programs do not need it.
    from scipy.optimize import linear_sum_assignment

    table = similarity.double().cpu().numpy()
    rows, columns = linear_sum_assignment(table, maximize=True)
    return torch.from_numpy(np.asarray(columns)), float(table[rows, columns].sum())


def solve(groups: Groups, number: int, similarity: Similarity) -> dict[int, Tensor]:
    """The permutations of one of `groups.roots()` and of the groups inside it.

    For units that contain others (a head with its channels), the similarity includes that of the best assignment of
    their contents.
    """
    group = groups.groups[number]
    best, chosen = _inside({inner.number: similarity(inner) for inner in groups.inner(number)}, group.size)
    table = similarity(group)
    if table is None and not chosen:
        # Nothing is known about these units: they stay in place.
        return {number: torch.arange(group.size)}
    permutation, _ = assign(best if table is None else table.double().cpu() + best)
    permutations = {number: permutation}
    for key, options in chosen.items():
        permutations[key] = torch.stack([options[row][column] for row, column in enumerate(permutation.tolist())])
    return permutations


def quality(similarity: Tensor, permutation: Tensor) -> float:
    """The mean similarity of matched units; pairs without one (NaN) are left out.

    >>> quality(torch.eye(2), torch.tensor([1, 0]))
    0.0
    """
    return float(similarity.double().cpu()[torch.arange(len(permutation)), permutation].nanmean())


def _inside(inside: Mapping[int, Tensor | None], size: int) -> tuple[Tensor, dict[int, list[list[Tensor]]]]:
    best = torch.zeros(size, size, dtype=torch.float64)
    chosen: dict[int, list[list[Tensor]]] = {}
    for key, table in inside.items():
        if table is None:
            continue
        options = [[assign(table[row, :, column]) for column in range(size)] for row in range(size)]
        best += torch.tensor([[worth for _, worth in line] for line in options], dtype=torch.float64)
        chosen[key] = [[permutation for permutation, _ in line] for line in options]
    return best, chosen
