"""How the residual blocks of a bridge are built: as the base's, or of cheaper convolutions and so wider ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from torch import nn

from modebridge.errors import ModebridgeError
from modebridge.nets import BasicBlock, BottleneckBlock
from modebridge.nets.blocks import conv
from modebridge.storage import named

__all__ = ["BLOCKS", "DepthwiseBlock", "Design", "LowRankBlock", "check_design", "redesigned"]

Design: TypeAlias = Literal["plain", "bottleneck", "depthwise", "low-rank", "shallow"]
"""Three blocks as the base's or of the kinds in `BLOCKS`; "shallow" is one block as the base's."""


def depthwise(inputs: int, outputs: int, kernel: int, stride: int, **options: Any) -> nn.Module:
    """A convolution of each channel by itself, then a 1x1 convolution."""
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
    """A `BasicBlock` whose convolutions are products of a narrow one and a 1x1."""

    convolution = staticmethod(low_rank)


BLOCKS: dict[str, type[nn.Module]] = {
    "bottleneck": BottleneckBlock,
    "depthwise": DepthwiseBlock,
    "low-rank": LowRankBlock,
}


def redesigned(
    design: Design, block: type[nn.Module], blocks: Sequence[tuple[int, int]]
) -> tuple[type[nn.Module], list[tuple[int, int]]]:
    """The class of the blocks and (planes, stride) of each, with as many channels between them as before.

    Args:
        design: what they are to be.
        block: the class that they are of.
        blocks: their planes and strides.

    >>> [redesigned(design, BasicBlock, [(64, 2), (64, 1)])[1] for design in ("bottleneck", "shallow")]
    [[(16, 2), (16, 1)], [(64, 2)]]
    """
    if design == "shallow":
        return block, [(blocks[-1][0], math.prod(stride for _, stride in blocks))]
    kind = BLOCKS.get(design, block)
    scale = getattr(block, "expansion", 1) / getattr(kind, "expansion", 1)
    return kind, [(max(int(planes * scale), 1), stride) for planes, stride in blocks]


def check_design(design: str, shape: Sequence[int] = (), places: bool = True) -> None:
    """Refuse a design that is none, and for a feature without places any but "plain"."""
    if design not in get_args(Design):
        known = ", ".join(f"'{name}'" for name in get_args(Design))
        raise ModebridgeError(f"Expected design to be one of {known}, but got '{design}'; choose one.")
    if design != "plain" and not places:
        raise ModebridgeError(
            f"Expected design to be 'plain' for a feature of {tuple(shape)}, which is no map or sequence to convolve, "
            f"but got '{design}'; leave it out or choose another tap."
        )
