"""All trained tensors of a member as one vector: one kernel updates them, one tensor saves them."""

from __future__ import annotations

import torch
from torch import Tensor

from modebridge.types import Params

__all__ = ["Layout"]

_ALIGN = 64
"""Every tensor starts at a multiple of this many numbers, so that vector loads stay aligned."""


class Layout:
    """Where each parameter lies in the vector, by name.

    A tensor keeps its own memory order (channels last stays channels last).

    Args:
        params: the parameters to lay out; others with the same names, shapes and memory orders fit too.
    """

    def __init__(self, params: Params) -> None:
        self._places: list[tuple[str, list[int], list[int], list[int]]] = []
        self._sizes: list[int] = []
        for name, tensor in params.items():
            strides = tensor.stride()
            order = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
            inverse = [order.index(axis) for axis in range(tensor.dim())]
            self._places.append((name, order, inverse, [tensor.shape[axis] for axis in order]))
            self._sizes += [tensor.numel(), -tensor.numel() % _ALIGN]

    @property
    def key(self) -> str:
        """Equal for layouts that are the same: those can share a compiled function."""
        return repr(self._places)

    def pack(self, params: Params) -> Tensor:
        """The vector that holds the parameters, a copy."""
        pieces: list[Tensor] = []
        for k, (name, order, _, _) in enumerate(self._places):
            tensor = params[name].detach()
            pieces += [tensor.permute(order).reshape(-1), tensor.new_zeros(self._sizes[2 * k + 1])]
        return torch.cat(pieces) if pieces else torch.zeros(0)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views: a gradient through them is a gradient of the vector."""
        pieces = torch.split(flat, self._sizes)
        return {
            name: pieces[2 * k].view(shape).permute(inverse) for k, (name, _, inverse, shape) in enumerate(self._places)
        }
