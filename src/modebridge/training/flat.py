"""All trained tensors of a task as one vector: one kernel updates them, one tensor saves them."""

from __future__ import annotations

import torch
from torch import Tensor

from modebridge.types import States

__all__ = ["Layout"]

_ALIGN = 64
"""Every tensor starts at a multiple of this many numbers, so that vector loads stay aligned."""


class Layout:
    """Where each parameter of some states lies in the vector, by member and name.

    A tensor keeps its own memory order (channels last stays channels last).

    Args:
        states: the states to lay out; others with the same names and shapes fit too.
    """

    def __init__(self, states: States) -> None:
        self._places: list[tuple[str, str, list[int], list[int], list[int]]] = []
        self._sizes: list[int] = []
        for member, state in states.items():
            for name, tensor in state.params.items():
                strides = tensor.stride()
                order = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
                inverse = [order.index(axis) for axis in range(tensor.dim())]
                shape = [tensor.shape[axis] for axis in order]
                self._places.append((member, name, order, inverse, shape))
                self._sizes += [tensor.numel(), -tensor.numel() % _ALIGN]

    def pack(self, states: States) -> Tensor:
        """The vector that holds the parameters of `states`, a copy."""
        pieces: list[Tensor] = []
        for k, (member, name, order, _, _) in enumerate(self._places):
            tensor = states[member].params[name].detach()
            pieces += [tensor.permute(order).reshape(-1), tensor.new_zeros(self._sizes[2 * k + 1])]
        return torch.cat(pieces) if pieces else torch.zeros(0)

    def views(self, flat: Tensor) -> dict[str, dict[str, Tensor]]:
        """The parameters by member and name, as views: a gradient through them is a gradient of the vector."""
        pieces = torch.split(flat, self._sizes)
        views: dict[str, dict[str, Tensor]] = {}
        for k, (member, name, _, inverse, shape) in enumerate(self._places):
            views.setdefault(member, {})[name] = pieces[2 * k].view(shape).permute(inverse)
        return views
