"""Build a bridge's body: like the base's last blocks, or for any feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch

from modebridge.bridges.bodies import ResidualBody, TokenBody, VectorBody
from modebridge.errors import ModebridgeError
from modebridge.nets import BasicBlock, BottleneckBlock, Norm, ResNetSpec, last_blocks_tap
from modebridge.nets.resnet import LAST_BLOCKS
from modebridge.types import Layout

__all__ = ["READS", "WIDE", "Kind", "body_for", "body_like", "channels_of", "joined_shape", "layout_for"]

Kind: TypeAlias = Literal["I", "II"]

READS: dict[Kind, int] = {"I": 1, "II": 2}
"""Number of modes that a bridge of each type reads."""

WIDE = 256
"""Bridges with at least this many channels use bottleneck blocks."""


def body_like(
    spec: ResNetSpec,
    kind: Kind,
    slim: float = 2,
    *,
    projection: bool = True,
    seed: int | None = None,
) -> ResidualBody:
    """The paper's bridge: a copy of the base's last three blocks, with every width divided by the slim factor.

    Args:
        spec: spec of the base network.
        kind: "I" reads one feature map, "II" two, concatenated along channels.
        slim: 1 gives the paper's medium bridge, 2 its small one.
        projection: False omits the first shortcut if shapes differ (only this matches the parameter counts of the
            paper's CIFAR-100 rows with 32 to 128 channels).
        seed: seed of the weights.
    """
    last_blocks_tap(spec)
    if kind not in READS:
        raise ModebridgeError(f"Expected the kind of bridge to be 'I' or 'II', but got '{kind}'.")
    before, last = spec.blocks()[:-LAST_BLOCKS], spec.blocks()[-LAST_BLOCKS:]
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
    seed: int | None = None,
) -> ResidualBody | TokenBody | VectorBody:
    """A bridge for a feature of any network: residual blocks for a map or a sequence, layers on tokens, a perceptron.

    Blocks are bottlenecks if the width is 256 or more. `modebridge.cost` counts the cost of a bridge; a tap late in the
    network is cheaper, and `body_within` builds to a budget.

    Args:
        shape: shape of one feature, without the batch axis.
        classes: number of outputs K.
        kind: "I" or "II".
        slim: divides the width of the feature.
        layout: meaning of the axes; None assumes (C, H, W), (T, C) or (C,).
        norm: norm of the residual blocks.
        seed: seed of the weights.
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
    return ResidualBody(inputs, blocks, classes, block=block, norm=norm, layout=layout, generator=generator)


def layout_for(shape: Sequence[int], layout: Layout | None = None) -> Layout:
    """The layout of a feature, by default from its number of axes; raises an error if no body supports it.

    >>> layout_for((8, 4, 4)), layout_for((17, 8)), layout_for((8, 17), "sequence")
    ('map', 'tokens', 'sequence')
    """
    axes: dict[int, tuple[Layout, ...]] = {
        1: ("vector",),
        2: ("tokens", "sequence"),
        3: ("map", "map, channels last"),
    }
    if len(shape) not in axes or not all(shape):
        raise ModebridgeError(
            f"Expected the feature at the tap to be (C, H, W), (C, L), (T, C) or (C,), but got {tuple(shape)}; "
            "choose another tap or pass your own body."
        )
    if layout is None:
        return axes[len(shape)][0]
    if layout not in axes[len(shape)]:
        known = " or ".join(f"'{name}'" for name in axes[len(shape)])
        raise ModebridgeError(f"Expected the layout of {tuple(shape)} to be {known}, but got '{layout}'; leave it out.")
    return layout


def joined_shape(shapes: Sequence[Sequence[int]], layout: Layout | None) -> tuple[int, ...]:
    """The shape of features concatenated along channels, at the smallest size.

    >>> joined_shape([(8, 4, 4), (4, 8, 8)], "map"), joined_shape([(17, 8), (17, 8)], "tokens")
    ((12, 4, 4), (17, 16))
    """
    if len(shapes) == 1:
        return tuple(shapes[0])
    known = layout_for(shapes[0], layout)
    axis = 0 if known in ("map", "sequence") else -1
    if len({len(shape) for shape in shapes}) > 1 or (known == "tokens" and len({shape[0] for shape in shapes}) > 1):
        raise ModebridgeError(
            f"Expected features of matching axes, but got {[tuple(shape) for shape in shapes]}; choose other taps."
        )
    joined = [min(sides) for sides in zip(*shapes, strict=True)]
    joined[axis] = sum(shape[axis] for shape in shapes)
    return tuple(joined)


def channels_of(shape: Sequence[int], layout: Layout) -> int:
    """Number of channels C: the first axis of a map or a sequence, otherwise the last."""
    return shape[0] if layout in ("map", "sequence") else shape[-1]
