"""Match units by their weights: coordinate descent over groups, each by an assignment with the others fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from modebridge.alignment.groups import Dim, Group, Groups, Place, leaves, places
from modebridge.alignment.passes import has_units
from modebridge.errors import ModebridgeError, near
from modebridge.types import Params

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
    best = torch.zeros(group.size, group.size, dtype=torch.float64)
    chosen: dict[int, list[list[Tensor]]] = {}
    for inner in groups.inner(number):
        contents = similarity(inner)
        if contents is not None:
            options = [[assign(contents[row, :, k]) for k in range(group.size)] for row in range(group.size)]
            best += torch.tensor([[worth for _, worth in line] for line in options], dtype=torch.float64)
            chosen[inner.number] = [[permutation for permutation, _ in line] for line in options]
    table = similarity(group)
    if table is None and not chosen:
        # Nothing is known about these units: they stay in place.
        return {number: torch.arange(group.size)}
    permutation, _ = assign(best if table is None else table.double().cpu() + best)
    permutations = {number: permutation}
    for key, found in chosen.items():
        permutations[key] = torch.stack([found[row][column] for row, column in enumerate(permutation.tolist())])
    return permutations


def quality(similarity: Tensor, permutation: Tensor) -> float:
    """The mean similarity of matched units; pairs without one (NaN) are left out.

    >>> quality(torch.eye(2), torch.tensor([1, 0]))
    0.0
    """
    return float(similarity.double().cpu()[torch.arange(len(permutation)), permutation].nanmean())


SWEEPS = 50
"""Maximum number of sweeps over all groups."""


def match_by_weights(groups: Groups, a: Params, b: Params) -> dict[int, Tensor]:
    """The permutations that bring the weights of `b` closest to those of `a`.

    The first sweep uses only weights whose other groups are already matched, starting at the inputs, whose order is
    known. Later sweeps use all weights, until nothing changes.
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
    table, of_a, of_b = (_table(groups, known, x, y, groups.identity(), None) for x, y in ((a, b), (a, a), (b, b)))

    def cosines(group: Group) -> Tensor | None:
        products, squares_a, squares_b = table(group), of_a(group), of_b(group)
        if products is None or squares_a is None or squares_b is None:
            return None
        n = groups.count(group)
        mine, theirs = (squares.reshape(n, n).diagonal().sqrt() for squares in (squares_a, squares_b))
        # A unit whose weights are 0 has cosine 0; two of them cannot be compared.
        cosine = products.reshape(n, n) / mine.clamp_min(1e-15)[:, None] / theirs.clamp_min(1e-15)[None, :]
        return cosine.masked_fill((mine == 0)[:, None] & (theirs == 0)[None, :], math.nan).reshape(products.shape)

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
        usable = [place for place in known[group.number] if place.weight in a and has_units(a[place.weight])]
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
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    moved = real.float().movedim(place.dim, 0)
    return moved[place.rows.to(moved.device)].reshape(len(place.rows), -1)


def _groups_on(groups: Groups, weight: str) -> set[int]:
    return {leaf.group for dim in groups.weights[weight] for leaf in leaves(dim) if leaf.group is not None}


Spec: TypeAlias = Mapping[str, Sequence[str | None]]
"""For every weight the name of the group on each dimension, None for fixed dimensions."""


def from_spec(spec: Spec, state: Params) -> Groups:
    """The groups from a spec: for every weight the name of the group on each dimension, or None.

    >>> import torch
    >>> spec = {"0.weight": ("hidden", None), "0.bias": ("hidden",), "1.weight": (None, "hidden")}
    >>> state = {"0.weight": torch.zeros(4, 2), "0.bias": torch.zeros(4), "1.weight": torch.zeros(3, 4)}
    >>> from_spec(spec, state).groups
    {0: Group(number=0, name='hidden', size=4, outer=None)}
    """
    sizes: dict[str, tuple[str, int]] = {}
    for name, dims in spec.items():
        if name not in state:
            raise ModebridgeError(
                f"Expected the spec to name weights of the network, but got '{name}'; {near(name, state)}"
            )
        if len(dims) != state[name].dim():
            raise ModebridgeError(
                f"Expected one entry per dimension of '{name}', which has {state[name].dim()}, but got {len(dims)}; "
                "use None for fixed dimensions."
            )
        for group, size in zip(dims, state[name].shape, strict=True):
            if group is not None and sizes.setdefault(group, (name, size))[1] != size:
                first, other = sizes[group]
                raise ModebridgeError(
                    f"Expected group '{group}' to have one size, but got {other} in '{first}' and {size} in '{name}'; "
                    "give them different names."
                )
    number_of = {group: k for k, group in enumerate(sizes)}
    groups = {number_of[group]: Group(number_of[group], group, size) for group, (_, size) in sizes.items()}
    weights = {
        name: tuple(
            Dim(size, number_of.get(group) if group is not None else None)
            for group, size in zip(spec.get(name, [None] * tensor.dim()), tensor.shape, strict=True)
        )
        for name, tensor in state.items()
    }
    return Groups(groups, weights)
