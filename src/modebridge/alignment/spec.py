"""The symmetry of a network specified by hand, if tracing cannot find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from modebridge.alignment.groups import Dim, Group, Groups
from modebridge.errors import ModebridgeError, near
from modebridge.types import Params

__all__ = ["Spec", "from_spec"]

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
