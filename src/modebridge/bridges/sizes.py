"""Bodies of a given size: the paper's, a fraction of the feature's width, or the widest within a budget of FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from modebridge.bridges.bodies import ResidualBody, TokenBody, VectorBody
from modebridge.bridges.bridge import READS, Kind
from modebridge.errors import ModebridgeError
from modebridge.nets import BasicBlock, BottleneckBlock, Norm, ResNetSpec, last_blocks_tap
from modebridge.nets.flops import counting, zeros
from modebridge.nets.resnet import LAST_BLOCKS
from modebridge.types import Layout

WIDE = 256
"""Bridges with at least this many channels use bottleneck blocks."""


def body_like(
    spec: ResNetSpec, kind: Kind, slim: float = 2, *, projection: bool = True, seed: int | None = None
) -> ResidualBody:
    """The paper's bridge: a copy of the base's last three blocks, with every width divided by the slim factor.

    Type II reads two feature maps, concatenated along channels. A slim factor of 1 gives the paper's medium bridge, 2
    its small one. Without `projection` there is no first shortcut if shapes differ: only this matches the parameter
    counts of the paper's CIFAR-100 rows with 32 to 128 channels.
    """
    last_blocks_tap(spec)
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

    The slim factor divides the width of the feature, whose shape has no batch axis; blocks are bottlenecks if the width
    is 256 or more. A layout of None assumes (C, H, W), (T, C) or (C,).
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
    axes: dict[int, list[Layout]] = {1: ["vector"], 2: ["tokens", "sequence"], 3: ["map", "map, channels last"]}
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


Family: TypeAlias = Callable[..., nn.Module]
"""Builds a body from a width and `generator`, the random generator of the weights."""

STEP = 8
"""Larger widths are multiples of it; it is the smallest width of bodies with blocks."""

LARGE = 14
"""Maps and sequences of at least this size are halved by the first block."""

SMALL = 4
"""Maps and sequences below this size are never halved."""

NARROW = 0.5
"""One block alone halves the map if it would be narrower than this share of the feature's channels."""


def body_within(
    shape: Sequence[int],
    layout: Layout | None,
    classes: int,
    kind: Kind,
    flops: float,
    *,
    norm: Norm = "bn",
    wide: bool = False,
    seed: int | None = None,
    base: float | None = None,
) -> tuple[nn.Module, float]:
    """The widest body with at most `flops` multiply-adds, and its counted (not estimated) multiply-adds.

    Maps and sequences get three residual blocks (bottlenecks for 512 channels or more). If three blocks of width 8
    exceed the budget, the first one halves the map; if that is not enough, there are fewer blocks. Tokens get two
    token-wise layers, or one. Vectors, and features for which no block fits, get a perceptron on the mean over places.
    With `wide` there is one block, as wide as fits; it halves the map if it would otherwise have less than half of its
    channels. This did best for heads on other modes (docs/frontier.md). If the FLOPs of the `base` are given, errors
    express the budget as a share of them.

    >>> body, counted = body_within((16,), "vector", 4, "I", 1000)
    >>> body.hidden.out_features, counted   # 48 * (16 + 4)
    (48, 960.0)
    """
    layout = layout_for(shape, layout)
    reads = [shape] * READS[kind]

    def cost(family: Family, width: int) -> float:
        return counted_body(partial(family, width), reads)[1]

    least = 0.0
    for family, narrowest in _families(shape, layout, classes, len(reads), norm, wide):
        least = cost(family, narrowest)
        if least <= flops:
            width, counted = _widest(partial(cost, family), narrowest, least, flops)
            return family(width, generator=None if seed is None else torch.Generator().manual_seed(seed)), counted
    got = f"{flops:,.0f} multiply-adds" if not base else f"{flops / base:.2g} of the base's FLOPs"
    smallest = f"{least:,.0f}" if not base else _rounded_up(least / base)
    raise ModebridgeError(
        f"Expected the budget to suffice for some bridge on a feature of {tuple(shape)}, but got {got}; "
        f"the smallest bridge there takes {smallest}."
    )


def counted_body(make: Callable[[], nn.Module], shapes: Sequence[Sequence[int]]) -> tuple[nn.Module, float]:
    """A body without weights and its multiply-adds; nothing is drawn, computed or stored."""
    with torch.device("meta"):
        body = make().eval()
    with torch.no_grad(), counting() as counted:
        body(*zeros(body, *shapes))
    return body, counted()


def _families(
    shape: Sequence[int], layout: Layout, classes: int, reads: int, norm: Norm, alone: bool
) -> Iterator[tuple[Family, int]]:
    """Families of bodies from the best to the cheapest, each with its smallest width."""
    channels = channels_of(shape, layout)
    inputs = channels * reads
    sides = () if layout in ("tokens", "vector") else shape[:2] if layout == "map, channels last" else shape[1:]
    places = max(sides, default=1) > 1
    if layout == "tokens" and shape[0] > 1:
        for blocks in (2, 1):
            yield partial(TokenBody, inputs, classes=classes, blocks=blocks), STEP
    elif places:
        # On wide maps plain blocks spend the whole budget on their first layer: squeeze first, as ResNet-50 does.
        block = BottleneckBlock if channels >= 2 * WIDE else BasicBlock
        residual = partial(_residual, inputs, classes=classes, block=block, norm=norm, layout=layout)
        # On small maps, wide blocks at half the size beat fewer and narrower ones (digits, docs/frontier.md).
        strides = (2,) if min(sides) >= LARGE else (1, 2) if min(sides) >= SMALL else (1,)
        for blocks in (1,) if alone else (3, 2, 1):
            for stride in strides:
                # One block at full size only if it can be wide; the last stride takes what fits.
                wide = alone and stride < strides[-1]
                least = STEP * math.ceil(NARROW * channels / STEP) if wide else STEP
                yield partial(residual, [stride, 1, 1][:blocks]), least
    yield partial(VectorBody, inputs, classes=classes, layout=layout), 1


def _residual(inputs: int, strides: Sequence[int], width: int, **options: Any) -> nn.Module:
    return ResidualBody(inputs, [(width, stride) for stride in strides], **options)


def _widest(cost: Callable[[int], float], narrowest: int, counted: float, flops: float) -> tuple[int, float]:
    """Bisection over the widths 1, 2, ..., 7, 8, 16, 24, ...; the smallest is known to fit.

    Costs grow with the width, except where the first shortcut needs no projection: if that width is cheaper than its
    neighbour it may be missed, but the budget is never exceeded.
    """

    def width(index: int) -> int:
        return index if index < STEP else STEP * (index - STEP + 1)

    fits = narrowest if narrowest < STEP else narrowest // STEP + STEP - 1
    fails = 2 * fits
    while (tried := cost(width(fails))) <= flops:
        fits, fails, counted = fails, 2 * fails, tried
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if (tried := cost(width(middle))) <= flops:
            fits, counted = middle, tried
        else:
            fails = middle
    return width(fits), counted


def _rounded_up(share: float) -> str:
    # To three digits, rounded up so that the budget named in the error suffices.
    scale = 10.0 ** (2 - math.floor(math.log10(share)))
    return f"{math.ceil(share * scale) / scale:.3g}"
