"""Match units by their weights: coordinate descent over groups, each by an assignment with the others fixed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from modebridge.alignment.assignment import Similarity, solve
from modebridge.alignment.groups import Group, Groups, Place, leaves, places
from modebridge.types import Params

__all__ = ["match_by_weights", "weight_similarity"]

SWEEPS = 50
"""Maximum number of sweeps over all groups."""


def match_by_weights(groups: Groups, a: Params, b: Params) -> dict[int, Tensor]:
    """The permutations that bring the weights of `b` closest to those of `a`.

    The first sweep uses only weights whose other groups are already matched, starting at the inputs, whose order is
    known. Later sweeps use all weights, until nothing changes.

    Args:
        groups: the symmetry.
        a: the reference's parameters.
        b: the parameters to permute.
    """
    known = {number: places(groups, number) for number in groups.groups}
    permutations = groups.identity()
    solved: set[int] = set()
    for number in groups.roots():
        family = {number, *(inner.number for inner in groups.inner(number))}
        permutations.update(solve(groups, number, _table(groups, known, a, b, permutations, solved | family)))
        solved |= family
    for _ in range(SWEEPS):
        before = {number: permutation.clone() for number, permutation in permutations.items()}
        for number in groups.roots():
            permutations.update(solve(groups, number, _table(groups, known, a, b, permutations, None)))
        if all(torch.equal(permutations[number], before[number]) for number in permutations):
            break
    return permutations


def weight_similarity(groups: Groups, a: Params, b: Params) -> Similarity:
    """Cosines between the units' weights, of two networks whose other groups are matched."""
    known = {number: places(groups, number) for number in groups.groups}
    table = _table(groups, known, a, b, groups.identity(), None)
    of_a = _table(groups, known, a, a, groups.identity(), None)
    of_b = _table(groups, known, b, b, groups.identity(), None)

    def cosines(group: Group) -> Tensor | None:
        parts = [given(group) for given in (table, of_a, of_b)]
        if parts[0] is None or parts[1] is None or parts[2] is None:
            return None
        n = group.size if group.outer is None else group.size * groups.groups[group.outer].size
        mine, theirs = (part.reshape(n, n).diagonal().sqrt() for part in parts[1:] if part is not None)
        # A unit whose weights are 0 has cosine 0; two of them cannot be compared.
        cosine = parts[0].reshape(n, n) / mine.clamp_min(1e-15)[:, None] / theirs.clamp_min(1e-15)[None, :]
        return cosine.masked_fill((mine == 0)[:, None] & (theirs == 0)[None, :], math.nan).reshape(parts[0].shape)

    return cosines


def _table(
    groups: Groups,
    known: Mapping[int, list[Place]],
    a: Params,
    b: Params,
    current: Mapping[int, Tensor],
    solved: Collection[int] | None,
) -> Similarity:
    """Inner products of the units' weights, with the other groups of `b` at the current permutations."""

    def products(group: Group) -> Tensor | None:
        # The groups being matched keep their order in `b`: the group, its outer group, and those inside it.
        inner = {one.number for one in groups.inner(group.number)}
        family = {group.number, group.outer, *inner}
        others = {number: permutation for number, permutation in current.items() if number not in family}
        usable = [place for place in known[group.number] if place.weight in a and not _is_whole(a[place.weight])]
        if inner:
            usable = [place for place in usable if not inner & _groups_on(groups, place.weight)]
        if solved is not None:
            usable = [place for place in usable if _groups_on(groups, place.weight) <= {*solved}] or usable
        total: Tensor | None = None
        for place in usable:
            mine = _units(a[place.weight], place)
            theirs = _units(groups.permuted(place.weight, b[place.weight], others), place)
            product = mine @ theirs.T
            total = product if total is None else total + product
        return None if total is None else groups.shaped(group, total)

    return products


def _units(tensor: Tensor, place: Place) -> Tensor:
    """One row per unit with all of its weights."""
    rows = place.rows.reshape(-1, place.rows.shape[-1])
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    moved = real.float().movedim(place.dim, 0)
    return moved[rows.to(moved.device)].reshape(len(rows), -1)


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _groups_on(groups: Groups, weight: str) -> set[int]:
    return {leaf.group for dim in groups.weights[weight] for leaf in leaves(dim) if leaf.group is not None}
