"""The widest body within a budget of FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from modebridge.bridges.bodies import ResidualBody, TokenBody, VectorBody
from modebridge.bridges.build import READS, WIDE, Kind, channels_of, layout_for
from modebridge.errors import ModebridgeError
from modebridge.nets import BasicBlock, BottleneckBlock, Norm
from modebridge.nets.flops import counting, zeros
from modebridge.types import Layout

__all__ = ["body_within"]

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
    channels. This did best for heads on other modes (docs/frontier.md).

    Args:
        shape: shape of one feature, without the batch axis.
        layout: meaning of the axes; None assumes (C, H, W), (T, C) or (C,).
        classes: number of outputs K.
        kind: "I" or "II".
        flops: the budget in multiply-adds.
        norm: norm of residual blocks.
        wide: one wide block on maps and sequences instead of three.
        seed: seed of the weights.
        base: FLOPs of the base network; if given, errors express the budget as a share of it.

    >>> body, counted = body_within((16,), "vector", 4, "I", 1000)
    >>> body.hidden.out_features, counted   # 48 * (16 + 4)
    (48, 960.0)
    """
    layout = layout_for(shape, layout)
    reads = [shape] * READS[kind]

    def cost(family: Family, width: int) -> float:
        with torch.device("meta"):  # nothing is drawn, computed or stored
            body = family(width).eval()
        with torch.no_grad(), counting() as counted:
            body(*zeros(body, *reads))
        return counted()

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
