"""The widest body that a number of FLOPs pays for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import nn

from modebridge.bridges.bodies import ResidualBody, TokenBody, VectorBody
from modebridge.bridges.build import READS, WIDE, Kind, channels_of, layout_for
from modebridge.bridges.designs import BLOCKS, Design, check_design
from modebridge.errors import ModebridgeError
from modebridge.nets import BasicBlock, BottleneckBlock, Norm
from modebridge.nets.flops import counting, zeros
from modebridge.types import Layout

__all__ = ["body_within"]

Family: TypeAlias = Callable[[int, torch.Generator | None], nn.Module]
"""From a width and the generator of the weights to a body."""

STEP = 8
"""Widths from here on are multiples of it, and no body with blocks is narrower."""

LARGE = 14
"""Maps and sequences of this size or more are halved by the first block."""

SMALL = 4
"""Smaller ones never are."""


def body_within(
    shape: Sequence[int],
    layout: Layout | None,
    classes: int,
    kind: Kind,
    flops: float,
    *,
    norm: Norm = "bn",
    design: Design = "plain",
    seed: int | None = None,
    base: float | None = None,
) -> tuple[nn.Module, float]:
    """The widest body of its family with at most `flops` multiply-adds, and how many it has: counted, not estimated.

    Maps and sequences get three residual blocks (bottlenecks where they have 512 channels or more); where three of
    width 8 are too dear the first one halves the map, and where that is not enough there are fewer. Tokens get two
    token-wise layers, or one. Where not even one fits, and for vectors, it is a perceptron on the mean over places.

    Args:
        shape: of one feature, without the batch axis.
        layout: what the axes are; None takes (C, H, W), (T, C) or (C,).
        classes: K.
        kind: "I" or "II".
        flops: the budget.
        norm: of residual blocks.
        design: how they are built, see `bridges.designs`; with any but "plain" it is never a perceptron.
        seed: of the weights.
        base: FLOPs of the base network, in whose shares an error is to speak.

    >>> body, counted = body_within((16,), "vector", 4, "I", 1000)
    >>> body.hidden.out_features, counted   # 48 * (16 + 4)
    (48, 960.0)
    """
    layout = layout_for(shape, layout)
    reads = [shape] * READS[kind]

    def cost(family: Family, width: int) -> float:
        with torch.device("meta"):  # nothing is drawn, computed or kept
            body = family(width, None).eval()
        with torch.no_grad(), counting() as counted:
            body(*zeros(body, *reads))
        return counted()

    least = 0.0
    for family, narrowest in _families(shape, layout, classes, len(reads), norm, design):
        least = cost(family, narrowest)
        if least <= flops:
            width, counted = _widest(partial(cost, family), narrowest, least, flops)
            return family(width, None if seed is None else torch.Generator().manual_seed(seed)), counted
    asked = f"{flops:,.0f} multiply-adds" if not base else f"{flops / base:.2g} of the base's FLOPs"
    smallest = f"{least:,.0f}" if not base else _rounded_up(least / base)
    some = "bridge" if design == "plain" else f"{design} bridge"
    raise ModebridgeError(
        f"Expected a budget that some {some} for a feature of {tuple(shape)} fits, but got {asked}; "
        f"the smallest {some} there takes {smallest}."
    )


def _families(
    shape: Sequence[int], layout: Layout, classes: int, reads: int, norm: Norm, design: Design
) -> Iterator[tuple[Family, int]]:
    """Bodies from the best to the cheapest, each with its narrowest width."""
    channels = channels_of(shape, layout)
    inputs = channels * reads
    sides = () if layout in ("tokens", "vector") else shape[:2] if layout == "map, channels last" else shape[1:]
    places = max(sides, default=1) > 1
    check_design(design, shape, places)
    if layout == "tokens" and shape[0] > 1:
        for blocks in (2, 1):
            yield partial(_tokens, inputs, classes, blocks), STEP
    elif places:
        # Plain blocks on wide maps spend all on the way in: squeeze first, as ResNet-50 does.
        block = BLOCKS.get(design, BottleneckBlock if channels >= 2 * WIDE else BasicBlock)
        # On small maps wide blocks at half the size beat fewer and narrower ones (digits, docs/frontier.md).
        strides = (2,) if min(sides) >= LARGE else (1, 2) if min(sides) >= SMALL else (1,)
        for blocks in (1,) if design == "shallow" else (3, 2, 1):
            for stride in strides:
                yield partial(_residual, inputs, classes, [stride, 1, 1][:blocks], block, norm, layout), STEP
    if design == "plain":
        yield partial(_vector, inputs, classes, layout), 1


def _tokens(inputs: int, classes: int, blocks: int, width: int, generator: torch.Generator | None) -> nn.Module:
    return TokenBody(inputs, width, classes, blocks=blocks, generator=generator)


def _residual(
    inputs: int,
    classes: int,
    strides: Sequence[int],
    block: type[nn.Module],
    norm: Norm,
    layout: Layout,
    width: int,
    generator: torch.Generator | None,
) -> nn.Module:
    blocks = [(width, stride) for stride in strides]
    return ResidualBody(inputs, blocks, classes, block=block, norm=norm, layout=layout, generator=generator)


def _vector(inputs: int, classes: int, layout: Layout, width: int, generator: torch.Generator | None) -> nn.Module:
    return VectorBody(inputs, width, classes, generator, layout=layout)


def _widest(cost: Callable[[int], float], narrowest: int, counted: float, flops: float) -> tuple[int, float]:
    """Bisection on the rungs 1, 2, ..., 7, 8, 16, 24, ...; the narrowest is known to fit.

    Costs grow with the width, but for the one at which the first shortcut needs no projection: where that is cheaper
    than its neighbour it may be passed over, never the budget.
    """

    def width(rung: int) -> int:
        return rung if rung < STEP else STEP * (rung - STEP + 1)

    fits, fails = narrowest, 2 * narrowest
    while (dearer := cost(width(fails))) <= flops:
        fits, fails, counted = fails, 2 * fails, dearer
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if (dearer := cost(width(middle))) <= flops:
            fits, counted = middle, dearer
        else:
            fails = middle
    return width(fits), counted


def _rounded_up(share: float) -> str:
    # To three digits and never below the truth, so that the budget which the error names works.
    scale = 10.0 ** (2 - math.floor(math.log10(share)))
    return f"{math.ceil(share * scale) / scale:.3g}"
