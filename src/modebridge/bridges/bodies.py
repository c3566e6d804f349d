"""The small networks inside bridges, for maps, sequences, tokens and vectors, built by a factor on their width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modebridge.bridges.bridge import READS, Kind
from modebridge.errors import ModebridgeError
from modebridge.nets import BasicBlock, BottleneckBlock, Norm, ResNetSpec, initialise, last_blocks_tap, second
from modebridge.nets.blocks import Padding, conv
from modebridge.nets.resnet import LAST_BLOCKS
from modebridge.types import Layout

WIDE = 256
"""Bridges with at least this many channels use bottleneck blocks."""


class Join(nn.Module):
    """Concatenate features along channels in the given order; the output of maps is channels first.

    Maps and sequences of several taps may differ in size: larger ones are average-pooled to the smallest size.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, *features: Tensor) -> Tensor:
        """Concatenate to one feature: (B, C, H, W), (B, C, L), (B, T, C) or (B, C)."""
        if self.layout == "map, channels last":
            features = tuple(feature.permute(0, 3, 1, 2) for feature in features)
        if self.layout != "tokens" and len({feature.shape[2:] for feature in features}) > 1:
            size = tuple(min(sides) for sides in zip(*(x.shape[2:] for x in features), strict=True))
            pool: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[len(size) - 1]
            features = tuple(x if x.shape[2:] == size else pool(x, size) for x in features)
        return features[0] if len(features) == 1 else torch.cat(features, dim=-1 if self.layout == "tokens" else 1)

    def extra_repr(self) -> str:  # bodies with different layouts are different programs
        return self.layout


class ResidualBody(nn.Module):
    """Residual blocks on a feature map, a sequence or a volume, then average pooling and a linear head.

    Args:
        inputs: input channels, in total over all features.
        blocks: (planes, stride) of each block.
        classes: number of outputs K.
        block: class of the blocks; the other options are those of `nets.blocks.Block`.
        layout: "map", "map, channels last", or "sequence" and "volume" for convolutions along one axis and three.
        dense: whether there is no pooling, and logits (B, K, *P) for every place.
        generator: random generator of the weights.
    """

    def __init__(
        self,
        inputs: int,
        blocks: Sequence[tuple[int, int]],
        classes: int,
        *,
        block: type[nn.Module] = BasicBlock,
        norm: Norm = "bn",
        bias: bool = False,
        padding: Padding = "half",
        projection: bool = True,
        layout: Layout = "map",
        dense: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"bias": bias, "padding": padding, "projection": projection}
        sizes = {"inputs": inputs, "blocks": [list(each) for each in blocks], "classes": classes}
        self.arguments: dict[str, Any] = {**sizes, "block": block, "norm": norm, **options, "layout": layout}
        self.arguments |= {"dense": True} if dense else {}  # files of other bodies stay as they are
        """What it was built with: a file describes it so."""
        self.join = Join(layout)
        layers: list[nn.Module] = []
        channels = inputs
        axes = {"sequence": 1, "volume": 3}.get(layout, 2)
        if axes != 2:  # passed only if needed: a custom block class may support maps only
            options["axes"] = axes
        for planes, stride in blocks:
            layers.append(block(channels, planes, stride, norm, **options))
            channels = planes * int(getattr(block, "expansion", 1))
        self.layers = nn.Sequential(*layers)
        pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[axes - 1]
        self.pool = None if dense else pool(1)
        head = conv(channels, classes, 1, 1, bias=True, padding="half", axes=axes)
        self.head: nn.Module = head if dense else nn.Linear(channels, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        x = self.layers(self.join(*features))
        return self.head(x if self.pool is None else self.pool(x).flatten(1))  # type: ignore[no-any-return]


class AttentionPool(nn.Module):
    r"""The mean of normalized tokens (B, T, C), weighted by attention with one learned query: (B, C).

    .. math:: p = \sum_t a_t x_t, \qquad a = \operatorname{softmax}_t (x_t \cdot q / \sqrt{C})

    The query starts at zero, so pooling starts as the plain mean. Tokens outside of `present` (B, T, 1) do not count.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.query = nn.Parameter(torch.zeros(channels, 1))

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        x = self.norm(tokens)
        closeness = x @ self.query / self.query.shape[0] ** 0.5
        attention = closeness.masked_fill(~present, torch.finfo(closeness.dtype).min).softmax(dim=1)
        pooled: Tensor = attention.transpose(1, 2) @ x
        return pooled.squeeze(1)


def present_tokens(tokens: Tensor) -> Tensor:
    """Which tokens (B, T, C) are not padding, as (B, T, 1): features of padding are read as zeros (`Taps.read`)."""
    return (tokens != 0).any(dim=-1, keepdim=True)


class TokenBody(nn.Module):
    """Token-wise residual layers, then attention pooling and a linear head."""

    def __init__(
        self, inputs: int, width: int, classes: int, *, blocks: int = 2, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.arguments = {"inputs": inputs, "width": width, "classes": classes, "blocks": blocks}
        self.join = Join("tokens")
        self.norm = nn.LayerNorm(inputs)
        self.entry = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.pool = AttentionPool(width)
        self.head = nn.Linear(width, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        tokens = self.join(*features)
        x = self.entry(self.norm(tokens))
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.pool(x, present_tokens(tokens)))  # type: ignore[no-any-return]


class VectorBody(nn.Module):
    """A two-layer perceptron on feature vectors (B, C), pooled tokens, or the mean of a map or sequence.

    A `dense` one is applied to every place of a map, sequence or volume instead of their mean.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        classes: int,
        generator: torch.Generator | None = None,
        *,
        layout: Layout = "vector",
        dense: bool = False,
    ) -> None:
        super().__init__()
        self.arguments: dict[str, Any] = {"inputs": inputs, "width": width, "classes": classes, "layout": layout}
        self.arguments |= {"dense": True} if dense else {}
        self.dense = dense
        self.join = Join(layout)
        self.pool = AttentionPool(inputs) if layout == "tokens" else None
        self.hidden = nn.Linear(inputs, width)
        self.act = nn.SiLU()
        self.head = nn.Linear(width, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        x = self.join(*features)
        if self.pool is not None:
            x = self.pool(x, present_tokens(x))
        elif x.dim() > 2:
            x = x.movedim(1, -1) if self.dense else x.mean(dim=tuple(range(2, x.dim())))
        return second(self.head(self.act(self.hidden(x))))


class Heads(nn.Module):
    """A body whose last layer has h * K outputs, used as h heads on one trunk."""

    def __init__(self, body: nn.Module, heads: int) -> None:
        super().__init__()
        self.body = body
        self.heads = heads

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, h, K)."""
        return self.body(*features).unflatten(1, (self.heads, -1))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:  # bodies that differ in it are different programs
        return f"heads={self.heads}"


def body_like(
    spec: ResNetSpec, kind: Kind, slim: float = 2, *, projection: bool = True, seed: int | None = None
) -> ResidualBody:
    """The paper's bridge: a copy of the base's last three blocks, with every width divided by the slim factor.

    Type II reads two feature maps, concatenated along channels. A slim factor of 1 gives the paper's medium bridge, 2
    its small one. Without `projection` there is no first shortcut if shapes differ: only this matches the parameter
    counts of the paper's CIFAR-100 rows with 32 to 128 channels.
    """
    last_blocks_tap(spec)
    blocks = list(spec.blocks())
    before, last = blocks[:-LAST_BLOCKS], blocks[-LAST_BLOCKS:]
    if not slim > 0 or any(int(planes / slim) < 1 for planes, _ in last):
        raise ModebridgeError(f"Expected slim to leave at least one channel, but got {slim}; 1 is medium, 2 small.")
    block = spec.block_type()
    inputs = before[-1][0] * block.expansion if before else spec.stem[0]
    return ResidualBody(
        inputs * READS[kind],
        [(int(planes / slim), stride) for planes, stride in last],
        spec.classes,
        block=block,
        norm=spec.norm,
        bias=spec.bias,
        padding=spec.padding,
        projection=projection,
        generator=None if seed is None else torch.Generator().manual_seed(seed),
    )


def body_for(
    shape: Sequence[int],
    classes: int,
    kind: Kind,
    slim: float = 2,
    *,
    layout: Layout | None = None,
    norm: Norm = "bn",
    dense: bool = False,
    seed: int | None = None,
) -> ResidualBody | TokenBody | VectorBody:
    """A bridge for a feature of any network: residual blocks for a map or a sequence, layers on tokens, a perceptron.

    The slim factor divides the width of the feature, whose shape has no batch axis; blocks are bottlenecks if the width
    is 256 or more. A layout of None assumes (C, D, H, W), (C, H, W), (T, C) or (C,). For `dense` see `ResidualBody`.
    """
    layout = layout_for(shape, layout)
    channels = channels_of(shape, layout)
    if not slim > 0 or channels / slim < 1:
        raise ModebridgeError(
            f"Expected slim to leave at least one channel of {channels}, but got {slim}; 1 is medium, 2 small."
        )
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    width, inputs = int(channels / slim), channels * READS[kind]
    if layout == "tokens":
        return TokenBody(inputs, width, classes, generator=generator)
    if layout == "vector":
        return VectorBody(inputs, width, classes, generator)
    # On wide maps plain 3x3 blocks would cost more than the network they replace: squeeze first, as ResNet-50 does.
    wide = width >= WIDE
    blocks = [(width // 4, 1)] * 3 if wide else [(width, 1)] * 3
    block = BottleneckBlock if wide else BasicBlock
    options: dict[str, Any] = {"block": block, "norm": norm, "layout": layout, "dense": dense}
    return ResidualBody(inputs, blocks, classes, generator=generator, **options)


def layout_for(shape: Sequence[int], layout: Layout | None = None) -> Layout:
    """The layout of a feature, by default from its number of axes; raises an error if no body supports it.

    >>> layout_for((8, 4, 4)), layout_for((17, 8)), layout_for((8, 17), "sequence")
    ('map', 'tokens', 'sequence')
    """
    maps: list[Layout] = ["map", "map, channels last"]
    axes: dict[int, list[Layout]] = {1: ["vector"], 2: ["tokens", "sequence"], 3: maps, 4: ["volume"]}
    if len(shape) not in axes or not all(shape):
        raise ModebridgeError(
            f"Expected the feature at the tap to be (C, D, H, W), (C, H, W), (C, L), (T, C) or (C,), but got "
            f"{tuple(shape)}; choose another tap or pass your own body."
        )
    if layout is None:
        return axes[len(shape)][0]
    if layout not in axes[len(shape)]:
        known = " or ".join(f"'{name}'" for name in axes[len(shape)])
        raise ModebridgeError(f"Expected the layout of {tuple(shape)} to be {known}, but got '{layout}'; leave it out.")
    return layout


def channels_of(shape: Sequence[int], layout: Layout) -> int:
    """Number of channels C: the first axis of a map or a sequence, otherwise the last."""
    return shape[0] if layout in ("map", "sequence", "volume") else shape[-1]
