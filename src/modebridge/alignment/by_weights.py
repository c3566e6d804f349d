"""Match units by their weights: coordinate descent over groups, each by an assignment with the others fixed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from modebridge.alignment.groups import Group, Groups, Permutations, Place
from modebridge.errors import ModebridgeError, near
from modebridge.types import Params

SWEEPS = 50
"""Maximum number of sweeps over all groups."""


def assign(similarity: Tensor) -> Tensor:
    """The one-to-one assignment with the largest sum of similarities (Hungarian).

    >>> assign(torch.tensor([[0.1, 0.9], [0.8, 0.2]]))
    tensor([1, 0])
    """
    # Imported here: it takes half a second, and most programs do not need it.
    from scipy.optimize import linear_sum_assignment

    _, columns = linear_sum_assignment(similarity.double().cpu().numpy(), maximize=True)
    return torch.from_numpy(np.asarray(columns))


def match_by_weights(groups: Groups, a: Params, b: Params) -> dict[int, Tensor]:
    """The permutations that bring the weights of `b` closest to those of `a`.

    The first sweep uses only weights whose other groups are already matched, starting at the inputs, whose order is
    known. Later sweeps use all weights, until nothing changes.
    """
    permutations = groups.identity()
    known: set[int] = set()
    for number in groups.groups:
        known.add(number)
        permutations |= _matched(number, _products(groups, number, a, b, permutations, known))
    for _ in range(SWEEPS):
        before = dict(permutations)
        for number in groups.groups:
            permutations |= _matched(number, _products(groups, number, a, b, permutations))
        if all(torch.equal(permutations[number], before[number]) for number in permutations):
            break
    return permutations


def _matched(number: int, table: Tensor | None) -> dict[int, Tensor]:
    return {} if table is None else {number: assign(table)}


def cosines(groups: Groups, a: Params, b: Params) -> dict[int, float]:
    """The mean cosine between the weights of units at the same index, by group."""
    means = {}
    for number in groups.groups:
        tables = [_products(groups, number, x, y, {}) for x, y in ((a, b), (a, a), (b, b))]
        products, mine, theirs = (torch.zeros(0) if table is None else table.double().diagonal() for table in tables)
        # A unit whose weights are 0 has cosine 0; two of them cannot be compared.
        cosine = products / (mine.sqrt() * theirs.sqrt()).clamp_min(1e-30)
        means[number] = float(cosine.masked_fill((mine == 0) & (theirs == 0), math.nan).nanmean())
    return means


def _products(
    groups: Groups, number: int, a: Params, b: Params, current: Permutations, known: Collection[int] | None = None
) -> Tensor | None:
    """Inner products of the units' weights, with the other groups of `b` at their current permutations.

    With `known`, only weights that have no other groups, if there are any.
    """
    others = {other: permutation for other, permutation in current.items() if other != number}
    having = [name for name, places in groups.weights.items() if name in a and number in _numbers(places)]
    if known is not None:
        having = [name for name in having if _numbers(groups.weights[name]) <= {*known}] or having
    total: Tensor | None = None
    for name in having:
        permuted = groups.permuted(name, b[name], others)
        for place in groups.weights[name]:
            if place.group == number:
                products = _units(a[name], place) @ _units(permuted, place).T
                total = products if total is None else total + products
    return total


def _units(tensor: Tensor, place: Place) -> Tensor:
    """One row per unit with all of its weights."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    return real.float().movedim(place.dim, 0)[place.rows.to(real.device)].reshape(len(place.rows), -1)


def _numbers(places: Sequence[Place]) -> set[int]:
    return {place.group for place in places}


Spec: TypeAlias = Mapping[str, Sequence[str | None]]
"""For every weight the name of the group on each dimension, None for fixed dimensions."""


def from_spec(spec: Spec, state: Params) -> Groups:
    """The groups from a spec: for every weight the name of the group on each dimension, or None.

    >>> import torch
    >>> spec = {"0.weight": ("hidden", None), "0.bias": ("hidden",), "1.weight": (None, "hidden")}
    >>> state = {"0.weight": torch.zeros(4, 2), "0.bias": torch.zeros(4), "1.weight": torch.zeros(3, 4)}
    >>> from_spec(spec, state).groups
    {0: Group(number=0, name='hidden', size=4)}
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
    numbers = {group: k for k, group in enumerate(sizes)}
    groups = {numbers[name]: Group(numbers[name], name, size) for name, (_, size) in sizes.items()}
    weights = {
        name: [Place(numbers[g], k, torch.arange(sizes[g][1])[:, None]) for k, g in enumerate(dims) if g is not None]
        for name, dims in spec.items()
    }
    return Groups(groups, weights)
