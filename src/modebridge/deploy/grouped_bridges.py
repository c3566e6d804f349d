"""Run several bridges of one architecture at one tap as one: each layer runs once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from modebridge.bridges import Heads
from modebridge.bridges.bodies import Join
from modebridge.deploy.elastic_answer import Place
from modebridge.nets import FilterResponseNorm, frozen_copy, same_architecture

__all__ = ["Grouped", "units"]

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d)
_BY_CHANNEL = (*_BATCH_NORM, FilterResponseNorm)
_UNCHANGED = (nn.SiLU, nn.ReLU, nn.Identity, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Dropout)


class Grouped(nn.Module):
    """Bodies that differ only in their weights, concatenated along the channel axis.

    Convolutions become grouped and linear layers batched products; norms and activations act per channel anyway.

    Args:
        bodies: at least two modules of one architecture that read one feature, built from layers that `units` supports.
    """

    def __init__(self, bodies: Sequence[nn.Module]) -> None:
        super().__init__()
        self.count = len(bodies)
        # Heads are split here: inside, the channels of all bodies are concatenated.
        trunks = [body.body if isinstance(body, Heads) else body for body in bodies]
        self._heads = (bodies[0].heads,) if isinstance(bodies[0], Heads) else ()
        self.body = frozen_copy(trunks[0])
        for name, layer in list(self.body.named_modules()):
            peers = [trunk.get_submodule(name) for trunk in trunks]
            if isinstance(layer, _CONVOLUTION):
                layer.groups *= self.count
                layer.in_channels *= self.count
                layer.out_channels *= self.count
                _join(layer, peers)
            elif isinstance(layer, _BY_CHANNEL):
                _join(layer, peers)
            elif isinstance(layer, nn.Linear):
                parent, _, child = name.rpartition(".")
                setattr(self.body.get_submodule(parent), child, _Products(peers))
        self.requires_grad_(False)

    def forward(self, feature: Tensor) -> Tensor:
        """Logits (J, B, K) of all bodies, or (J, B, h, K)."""
        copies = feature.repeat(1, self.count, *[1] * (feature.dim() - 2))
        logits: Tensor = self.body(copies)
        return logits.reshape(feature.shape[0], self.count, *self._heads, -1).transpose(0, 1)


class _Products(nn.Module):
    """Linear layers as one batched product: (B, J * C) to (B, J * K)."""

    weight: Tensor
    bias: Tensor

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.count = len(linear)
        self.register_buffer("weight", torch.stack([layer.weight.detach().T for layer in linear]))
        blank = [layer.weight.new_zeros(layer.out_features) for layer in linear]
        biases = [b if layer.bias is None else layer.bias.detach() for layer, b in zip(linear, blank, strict=True)]
        self.register_buffer("bias", torch.stack(biases)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        parts = x.reshape(x.shape[0], self.count, -1).transpose(0, 1)  # (J, B, C)
        return (torch.matmul(parts, self.weight) + self.bias).transpose(0, 1).flatten(1)


def _join(layer: nn.Module, peers: Sequence[nn.Module]) -> None:
    """Give a layer the weights and statistics of all its peers, concatenated along the channel axis."""
    for name, _ in list(layer.named_parameters(recurse=False)):
        joined = torch.cat([peer.get_parameter(name).detach() for peer in peers])
        setattr(layer, name, nn.Parameter(joined, requires_grad=False))
    for name, buffer in list(layer.named_buffers(recurse=False)):
        if buffer.dim():
            setattr(layer, name, torch.cat([peer.get_buffer(name) for peer in peers]))
    if isinstance(layer, _BATCH_NORM):
        layer.num_features *= len(peers)


def units(
    bodies: Sequence[nn.Module], reads: Sequence[Sequence[Place]], heads: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """The indices of bridges that can run as one; other bridges form units of their own.

    Type I bridges at one tap are grouped if they differ only in their weights and all their layers are supported. Those
    with several heads must use `Heads`.

    Args:
        bodies: one per bridge.
        reads: (base, tap) of every feature that each bridge reads.
        heads: number of heads of each bridge; None if each has one.
    """
    groups: list[list[int]] = []
    for j, (body, places) in enumerate(zip(bodies, reads, strict=True)):
        leaves = [layer for layer in body.modules() if not any(True for _ in layer.children())]
        peers = next(
            (
                group
                for group in groups
                if list(reads[group[0]]) == list(places) and same_architecture(bodies[group[0]], body)
            ),
            None,
        )
        split = isinstance(body, Heads) or heads is None or heads[j] == 1
        if peers is None or len(places) != 1 or not split or not all(map(_supported, leaves)):
            groups.append([j])
        else:
            peers.append(j)
    return [tuple(numbers) for numbers in groups]


def _supported(layer: nn.Module) -> bool:
    if isinstance(layer, Join):
        # Features are repeated along the channel axis, which must come first.
        return layer.channels_first
    return isinstance(layer, (*_CONVOLUTION, nn.Linear, *_BY_CHANNEL, *_UNCHANGED))
