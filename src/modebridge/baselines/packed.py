"""Packed ensembles (Laurent et al., 2023): narrow networks in parallel, run as one with grouped convolutions."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from modebridge.baselines.baseline import Baseline, channels_of, replaced
from modebridge.errors import ModebridgeError
from modebridge.types import Inputs


class Packed(Baseline):
    """M narrow networks in one: every convolution and linear layer except the first has M groups.

    The first layer reads the whole image, and the last linear layer predicts for each member from its channels. A
    network of the same widths has about 1 / M of the multiply-adds and weights; one that is alpha times as wide has
    alpha^2 / M of them.

    Args:
        net: any module that keeps the order of channels from layer to layer and normalizes them separately; it is
            copied. Its weights are cut to the groups, and scaled by sqrt(M) where a sum has M times fewer terms.
        members: number of members M; it must divide the channels of all layers.
        example: a batch, to find the first and last layer and to check that members are independent.

    >>> net = nn.Sequential(nn.Conv1d(1, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.Flatten(), nn.Linear(16, 5))
    >>> packed = Packed(net, 4, example=torch.rand(1, 1, 6))
    >>> packed.net[2].groups, packed(torch.rand(3, 1, 6)).shape
    (4, torch.Size([12, 5]))
    """

    what = "a packed ensemble"

    def __init__(self, net: nn.Module, members: int = 4, *, example: Inputs) -> None:
        order = self.order(net, members, example)
        if len(order) < 2 or not isinstance(net.get_submodule(order[-1]), nn.Linear):
            raise ModebridgeError(
                f"Expected {self.what} to get a network of several layers that ends with a linear layer, but got "
                f"{type(net).__name__}; use another method."
            )
        layers: dict[str, nn.Module] = {}
        check_split(channels_of(net.get_submodule(order[0]))[1], members, f"the channels of '{order[0]}'")
        for name in order[1:]:
            layer = net.get_submodule(name)
            if isinstance(layer, nn.Linear):
                layers[name] = _GroupedLinear(layer, members, name, last=name == order[-1])
            else:
                layers[name] = _grouped(layer, members, name)
        super().__init__(replaced(net, layers), members)
        self._check_apart(self.net.get_submodule(order[0]), example)

    def arranged(self, inputs: Tensor) -> Tensor:
        return inputs

    @torch.no_grad()
    def fill(self, networks: Sequence[nn.Module]) -> None:
        """Copy the weights and statistics of M networks of 1 / M of the width, in place."""
        states = [network.state_dict() for network in networks]
        for name, tensor in self.net.state_dict().items():
            parts = [state[name] for state in states]
            tensor.copy_(torch.cat(parts).view_as(tensor) if parts[0].dim() else parts[0])

    def _check_apart(self, first: nn.Module, example: Inputs) -> None:
        """Raise an error if the network mixes channels of different members, by a norm or by concatenating maps."""
        maps: list[Tensor] = []
        axis = -1 if isinstance(first, nn.Linear) else 1

        def keep(layer: nn.Module, inputs: object, output: Tensor) -> Tensor:
            # A leaf tensor as input of the rest, which is then independent of the weights before.
            maps.append(output.detach().movedim(axis, 0).requires_grad_())
            return maps[-1].movedim(0, axis)

        handle = first.register_forward_hook(keep)
        try:
            why = "their channels, by a norm over channels or by concatenation; use one with batch norm and plain sums"
            self.check_apart(example, range(self.size), maps, why)
        finally:
            handle.remove()


def check_split(channels: int, members: int, what: str) -> None:
    if channels % members:
        raise ModebridgeError(
            f"Expected {what} to be a multiple of the {members} members of a packed ensemble, but got {channels}; "
            "choose another number of members or other widths."
        )


def _grouped(conv: nn.Module, members: int, name: str) -> nn.Module:
    """A convolution with M groups; one whose groups are already within members is copied unchanged."""
    assert isinstance(conv, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    for channels in channels_of(conv):
        check_split(channels, members, f"the channels of '{name}'")
    if conv.groups % members == 0:
        return copy.deepcopy(conv)
    if conv.groups != 1:
        raise ModebridgeError(
            f"Expected '{name}' to have one group or a multiple of the {members} members of a packed ensemble, but got "
            f"{conv.groups}; choose another number of members."
        )
    grouped = copy.deepcopy(conv)
    grouped.groups = members
    grouped.weight = nn.Parameter(_blocks(conv.weight.detach(), members).flatten(0, 1))
    if conv.weight.dim() == 4 and conv.weight.is_contiguous(memory_format=torch.channels_last):
        grouped.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return grouped


def _blocks(weight: Tensor, members: int) -> Tensor:
    """The diagonal blocks of (O, I, ...) as (M, O / M, I / M, ...), scaled for sums over I / M terms."""
    rows = torch.unflatten(torch.unflatten(weight, 1, (members, -1)), 0, (members, -1))
    return torch.stack([rows[m, :, m] for m in range(members)]) * math.sqrt(members)


class _GroupedLinear(nn.Module):
    """Parallel linear layers, (..., M * C) to (..., M * C'); the last one maps (B, ..., M * C) to (M * B, ..., K)."""

    def __init__(self, linear: nn.Linear, members: int, name: str, *, last: bool) -> None:
        super().__init__()
        check_split(linear.in_features, members, f"the inputs of '{name}'")
        self.members, self.last = members, last
        weight: Tensor = linear.weight.detach()
        bias: Tensor | None = None if linear.bias is None else linear.bias.detach()
        if last:
            # The columns of each member, (M, K, C).
            weight = torch.unflatten(weight, 1, (members, -1)).movedim(1, 0) * math.sqrt(members)
            bias = None if bias is None else bias.repeat(members, 1)
        else:
            check_split(linear.out_features, members, f"the outputs of '{name}'")
            weight = _blocks(weight, members)
            bias = None if bias is None else bias.view(members, -1)
        self.weight = nn.Parameter(weight.clone())
        self.bias = None if bias is None else nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.unflatten(x, -1, (self.members, -1)).movedim(-2, 0)  # (M, B, ..., C)
        flat = parts.flatten(1, -2) @ self.weight.transpose(1, 2)
        if self.bias is not None:
            flat = flat + self.bias[:, None]
        y = torch.unflatten(flat, 1, parts.shape[1:-1])
        return y.flatten(0, 1) if self.last else y.movedim(0, -2).flatten(-2)
