"""The widest body within a budget of multiply-adds and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from modebridge.bridges.bodies import WIDE, ResidualBody, TokenBody, VectorBody, channels_of, layout_for
from modebridge.bridges.bridge import READS, Kind
from modebridge.errors import ModebridgeError
from modebridge.nets import BasicBlock, BottleneckBlock, Norm
from modebridge.nets.flops import counting, zeros
from modebridge.types import Layout

STEP = 8
"""Larger widths are multiples of it; it is the smallest width of bodies with blocks."""

LARGE, SMALL = 14, 4
"""Maps and sequences of at least LARGE are halved by the first block, those below SMALL never."""

NARROW = 0.5
"""Layers narrower than this share of the feature's channels are worth less than wide ones on fewer places: one block
alone then halves the map, and tokens are pooled first (docs/frontier.md)."""


def body_within(
    shape: Sequence[int],
    layout: Layout | None,
    classes: int,
    kind: Kind,
    flops: float,
    params: float = math.inf,
    *,
    norm: Norm = "bn",
    wide: bool = False,
    dense: bool = False,
    seed: int | None = None,
    base: float | None = None,
) -> tuple[nn.Module, float]:
    """The widest body with at most `flops` multiply-adds and `params` parameters, and its counted multiply-adds.

    Maps and sequences get three residual blocks (bottlenecks for 512 channels or more), the first of which halves large
    maps, or fewer. Tokens get two token-wise layers of at least half of the channels, or one. Vectors, and features for
    which these do not fit, get a perceptron on pooled tokens or the mean over places. With `wide` there is one block,
    which halves the map if it would otherwise have less than half of its channels: best for heads on other modes
    (docs/frontier.md). A `dense` body has logits for every place: blocks of at least half of the channels, or a
    perceptron on every place. If the FLOPs of the `base` are given, errors express the budget as a share of them.

    >>> body, counted = body_within((16,), "vector", 4, "I", 1000)
    >>> body.hidden.out_features, counted   # 48 * (16 + 4)
    (48, 960.0)
    """
    layout = layout_for(shape, layout)
    reads = [shape] * READS[kind]

    def cost(family: Callable[..., nn.Module], width: int) -> tuple[float, int]:
        body, counted = counted_body(partial(family, width), reads)
        return counted, size_of(body)

    def fits(family: Callable[..., nn.Module], width: int) -> bool:
        counted, size = cost(family, width)
        return counted <= flops and size <= params

    for family, narrowest in _families(shape, layout, classes, len(reads), norm, wide, dense):
        if fits(family, narrowest):
            width = _widest(partial(fits, family), narrowest)
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            return family(width, generator=generator), cost(family, width)[0]
    least, size = cost(family, narrowest)
    got, smallest = f"{flops:,.0f} multiply-adds", f"{least:,.0f}"
    if least <= flops:
        got, smallest = f"at most {params:,.0f} parameters", f"{size:,}: pass your own body"
    elif base:
        got, smallest = f"{flops / base:.2g} of the base's FLOPs", _rounded_up(least / base)
    raise ModebridgeError(
        f"Expected the budget to suffice for some bridge on a feature of {tuple(shape)}, but got {got}; "
        f"the smallest bridge there takes {smallest}."
    )


def size_of(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def counted_body(make: Callable[[], nn.Module], shapes: Sequence[Sequence[int]]) -> tuple[nn.Module, float]:
    """A body without weights and its multiply-adds; nothing is drawn, computed or stored."""
    with torch.device("meta"):
        body = make().eval()
    with torch.no_grad(), counting() as counted:
        body(*zeros(body, *shapes))
    return body, counted()


def _families(
    shape: Sequence[int], layout: Layout, classes: int, reads: int, norm: Norm, alone: bool, dense: bool
) -> Iterator[tuple[Callable[..., nn.Module], int]]:
    """Functions from a width to a body, from the best to the cheapest, each with its smallest width."""
    channels = channels_of(shape, layout)
    inputs = channels * reads
    sides = () if layout in ("tokens", "vector") else shape[:2] if layout == "map, channels last" else shape[1:]
    half = STEP * math.ceil(NARROW * channels / STEP)
    if layout == "tokens" and shape[0] > 1:
        for blocks in (2, 1):
            yield partial(TokenBody, inputs, classes=classes, blocks=blocks), half
    elif max(sides, default=1) > 1 or dense:
        # On wide maps plain blocks spend the whole budget on their first layer: squeeze first, as ResNet-50 does.
        block = BottleneckBlock if channels >= 2 * WIDE else BasicBlock
        residual = partial(_residual, inputs, classes=classes, block=block, norm=norm, layout=layout, dense=dense)
        # On small maps, wide blocks at half the size beat fewer and narrower ones (digits, docs/frontier.md).
        strides = (2,) if min(sides) >= LARGE else (1, 2) if min(sides) >= SMALL else (1,)
        strides = (1,) if dense else strides
        for blocks in (1,) if alone else (3, 2, 1):
            for stride in strides:
                # One block at full size only if it can be wide; the last stride takes what fits.
                least = half if dense or (alone and stride < strides[-1]) else STEP
                yield partial(residual, [stride, 1, 1][:blocks]), least
    yield partial(VectorBody, inputs, classes=classes, layout=layout, dense=dense), 1


def _residual(inputs: int, strides: Sequence[int], width: int, **options: Any) -> nn.Module:
    return ResidualBody(inputs, [(width, stride) for stride in strides], **options)


def _widest(fits: Callable[[int], bool], narrowest: int) -> int:
    """Bisection over the widths 1, 2, ..., 7, 8, 16, 24, ...; the smallest is known to fit.

    Costs grow with the width, except where the first shortcut needs no projection: if that width is cheaper than its
    neighbor it may be missed, but the budget is never exceeded.
    """

    def width(index: int) -> int:
        return index if index < STEP else STEP * (index - STEP + 1)

    good = narrowest if narrowest < STEP else narrowest // STEP + STEP - 1
    bad = 2 * good
    while fits(width(bad)):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(width(middle)) else (good, middle)
    return width(good)


def _rounded_up(share: float) -> str:
    # To three digits, rounded up so that the budget named in the error suffices.
    scale = 10.0 ** (2 - math.floor(math.log10(share)))
    return f"{math.ceil(share * scale) / scale:.3g}"
