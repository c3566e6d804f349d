"""The small networks inside bridges: built like the base's last blocks, or to fit any feature map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError
from modebridge.nets import BasicBlock, BottleneckBlock, Norm, ResNetSpec, initialise
from modebridge.nets.blocks import Padding

__all__ = ["Kind", "ResidualBody", "VectorBody", "body_for", "body_like", "last_blocks_tap"]

Kind: TypeAlias = Literal["I", "II"]

WIDE = 256
"""Channels from which a bridge is built of bottleneck blocks."""


class ResidualBody(nn.Module):
    """Residual blocks on a feature map, then average pool and a linear head.

    Args:
        inputs: channels of the feature map that comes in.
        blocks: (planes, stride) of each block.
        classes: K.
        block: the class of the blocks.
        norm: "frn" or "bn".
        bias: whether convolutions have a bias.
        padding: see `nets.blocks.conv`.
        projection: whether the first block's shortcut is a projection where shapes differ.
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
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = inputs
        expansion = int(getattr(block, "expansion", 1))
        for planes, stride in blocks:
            layers.append(block(channels, planes, stride, norm, bias=bias, padding=padding, projection=projection))
            channels = planes * expansion
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K) of one or two feature maps (B, C, H, W), joined on channels in the order given."""
        x = features[0] if len(features) == 1 else torch.cat(features, dim=1)
        return self.head(self.pool(self.layers(x)).flatten(1))  # type: ignore[no-any-return]


class VectorBody(nn.Module):
    """A two-layer perceptron on feature vectors (B, C)."""

    def __init__(self, inputs: int, width: int, classes: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.act = nn.SiLU()
        self.head = nn.Linear(width, classes)
        initialise(self, generator)

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K) of one or two feature vectors (B, C), joined in the order given."""
        x = features[0] if len(features) == 1 else torch.cat(features, dim=1)
        return self.head(self.act(self.hidden(x)))  # type: ignore[no-any-return]


def last_blocks_tap(spec: ResNetSpec, blocks: int = 3) -> str:
    """The tap that feeds a bridge of the last `blocks` blocks: the output of the block before them.

    >>> from modebridge.nets import SPECS
    >>> last_blocks_tap(SPECS["cifar10"]), last_blocks_tap(SPECS["in1k"])
    ('layers.12', 'layers.13')
    """
    if not 1 <= blocks <= spec.depth:
        raise ModebridgeError(
            f"Expected blocks to be between 1 and the network's {spec.depth}, but got {blocks}; 3 is the paper's."
        )
    return f"layers.{spec.depth - blocks}"


def body_like(
    spec: ResNetSpec,
    kind: Kind,
    slim: float = 2,
    *,
    blocks: int = 3,
    projection: bool = True,
    seed: int | None = None,
) -> ResidualBody:
    """The paper's bridge: a copy of the base's last blocks, every width divided by the slim factor.

    Args:
        spec: of the base network.
        kind: "I" reads one feature map, "II" two, joined on channels.
        slim: 1 gives the paper's medium bridge, 2 its small one.
        blocks: how many of the last blocks are copied.
        projection: False leaves out the first shortcut where shapes differ (the paper's CIFAR-100 rows of 32 to 128
            channels only add up that way).
        seed: of the weights.
    """
    last_blocks_tap(spec, blocks)
    if kind not in ("I", "II"):
        raise ModebridgeError(f"Expected the kind of bridge to be 'I' or 'II', but got '{kind}'.")
    if not slim > 0 or any(int(planes / slim) < 1 for planes, _ in spec.blocks()[-blocks:]):
        raise ModebridgeError(f"Expected slim to leave at least one channel, but got {slim}; 1 is medium, 2 small.")
    block = spec.block_type()
    before = spec.blocks()[: spec.depth - blocks]
    inputs = before[-1][0] * block.expansion if before else spec.stem[0]
    return ResidualBody(
        inputs * (1 if kind == "I" else 2),
        [(int(planes / slim), stride) for planes, stride in spec.blocks()[-blocks:]],
        spec.classes,
        block=block,
        norm=spec.norm,
        bias=spec.bias,
        padding=spec.padding,
        projection=projection,
        generator=None if seed is None else torch.Generator().manual_seed(seed),
    )


def body_for(
    shape: Sequence[int], classes: int, kind: Kind, slim: float = 2, *, norm: Norm = "bn", seed: int | None = None
) -> ResidualBody | VectorBody:
    """A bridge for a feature of any network: residual blocks for (C, H, W), a perceptron for (C,).

    Blocks are bottlenecks where the width is 256 or more. `modebridge.cost` says what a bridge costs; a tap late in the
    network is cheaper.

    Args:
        shape: of one feature, without the batch axis.
        classes: K.
        kind: "I" or "II".
        slim: divides the width of the feature.
        norm: of the residual blocks.
        seed: of the weights.
    """
    if not slim > 0 or shape[0] / slim < 1:
        raise ModebridgeError(
            f"Expected slim to leave at least one channel of {shape[0]}, but got {slim}; 1 is medium, 2 small."
        )
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    width, inputs = int(shape[0] / slim), shape[0] * (1 if kind == "I" else 2)
    if len(shape) == 3:
        # On wide maps plain 3x3 blocks would cost more than the network they are to save: squeeze first, as ResNet-50.
        wide = width >= WIDE
        blocks = [(width // 4, 1)] * 3 if wide else [(width, 1)] * 3
        block = BottleneckBlock if wide else BasicBlock
        return ResidualBody(inputs, blocks, classes, block=block, norm=norm, generator=generator)
    if len(shape) == 1:
        return VectorBody(inputs, width, classes, generator)
    raise ModebridgeError(
        f"Expected the feature at the tap to be (C, H, W) or (C,), but got {tuple(shape)}; "
        "choose another tap or give your own body."
    )
