"""Designs of a bridge's residual blocks: like the base's, or of cheaper convolutions, which can be wider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from torch import nn

from modebridge.errors import ModebridgeError
from modebridge.files import named
from modebridge.nets import BasicBlock, BottleneckBlock
from modebridge.nets.blocks import conv

__all__ = ["BLOCKS", "DepthwiseBlock", "Design", "LowRankBlock", "check_design", "redesigned"]

Design: TypeAlias = Literal["plain", "bottleneck", "depthwise", "low-rank", "shallow", "auto"]
"""Three blocks like the base's or of a kind in `BLOCKS`; "shallow" is one block like the base's; "auto" is what did
best (docs/frontier.md): "shallow" on maps within a budget, else "plain"."""


def depthwise(inputs: int, outputs: int, kernel: int, stride: int, **options: Any) -> nn.Module:
    """A depthwise convolution, then a 1x1 convolution."""
    first = conv(inputs, inputs, kernel, stride, groups=inputs, **options)
    return nn.Sequential(first, conv(inputs, outputs, 1, 1, **options))


def low_rank(inputs: int, outputs: int, kernel: int, stride: int, **options: Any) -> nn.Module:
    """A convolution to a quarter of the channels, rounded up to a multiple of 8, then a 1x1 convolution."""
    rank = 8 * math.ceil(outputs / 32)
    return nn.Sequential(conv(inputs, rank, kernel, stride, **options), conv(rank, outputs, 1, 1, **options))


@named
class DepthwiseBlock(BasicBlock):
    """A `BasicBlock` of depthwise-separable convolutions."""

    convolution = staticmethod(depthwise)


@named
class LowRankBlock(BasicBlock):
    """A `BasicBlock` whose convolutions are a narrow one followed by a 1x1."""

    convolution = staticmethod(low_rank)


BLOCKS: dict[str, type[nn.Module]] = {
    "bottleneck": BottleneckBlock,
    "depthwise": DepthwiseBlock,
    "low-rank": LowRankBlock,
}


def redesigned(
    design: Design, block: type[nn.Module], blocks: Sequence[tuple[int, int]]
) -> tuple[type[nn.Module], list[tuple[int, int]]]:
    """Apply a design: the class of the blocks and (planes, stride) of each, with the same channels between blocks.

    Args:
        design: the design to apply.
        block: original class of the blocks.
        blocks: original planes and strides.

    >>> [redesigned(design, BasicBlock, [(64, 2), (64, 1)])[1] for design in ("bottleneck", "shallow")]
    [[(16, 2), (16, 1)], [(64, 2)]]
    """
    if design == "shallow":
        return block, [(blocks[-1][0], math.prod(stride for _, stride in blocks))]
    kind = BLOCKS.get(design, block)
    scale = getattr(block, "expansion", 1) / getattr(kind, "expansion", 1)
    return kind, [(max(int(planes * scale), 1), stride) for planes, stride in blocks]


def check_design(design: str, shape: Sequence[int] = (), places: bool = True) -> None:
    """Raise an error if a design is unknown, or is one of blocks for a feature without spatial positions."""
    if design not in get_args(Design):
        known = ", ".join(f"'{name}'" for name in get_args(Design))
        raise ModebridgeError(f"Expected design to be one of {known}, but got '{design}'; choose one.")
    if design not in ("plain", "auto") and not places:
        raise ModebridgeError(
            f"Expected design to be 'plain' or 'auto' for a feature of {tuple(shape)}, which is not a map or sequence, "
            f"but got '{design}'; omit it or choose another tap."
        )
