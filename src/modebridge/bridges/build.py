"""Build a bridge before training: its taps, its body (the widest within a budget of FLOPs), its cost and its target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from modebridge import nets
from modebridge.batches import take_rows
from modebridge.bridges import bodies
from modebridge.bridges.bridge import READS, Aim, Bridge, Kind, Target, check_body, check_choices, chosen_target, listed
from modebridge.curves import Curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes
from modebridge.nets.flops import Shape, counting, zeros
from modebridge.types import Batch, Inputs, Layout


def plan_bridge(
    net: nn.Module,
    modes: Curve | Mode | Sequence[Mode],
    images: Inputs,
    *,
    kind: Kind = "I",
    target: Aim | Sequence[Aim] = "curve",
    **options: Any,
) -> Bridge:
    """A bridge before training, on modes or for a curve; `kind` and `target` are those of `fit_bridge`.

    A few `images` (or inputs by name) show the shape of the features. The options are those of `build_bridge`; within a
    budget, heads on other modes are one wide block (docs/frontier.md).
    """
    check_choices(net, modes, kind)
    aim = chosen_target(target, modes, kind)
    if aim.modes:
        check_modes(net, aim.modes, 1, "a bridge's target")
    return build_bridge(net, images, listed(modes)[: READS[kind]], aim, wide=aim.of_modes, **options)


def build_bridge(
    net: nn.Module,
    images: Inputs,
    reads: Sequence[Mode] | Kind,
    target: Target | int = 1,
    *,
    tap: str | Sequence[str] | None = None,
    slim: float = 2,
    budget: float | None = None,
    wide: bool = False,
    body: nn.Module | None = None,
    name: str = "bridge",
    seed: int = 0,
) -> Bridge:
    """An untrained bridge with its counted cost.

    `reads` are the modes that it reads, or its type alone, to count costs. `target` is what it will learn, or the
    number of heads alone. `slim` divides the widths: 2 is the paper's small bridge, 1 its medium one. A `budget` is
    used instead; with `wide`, the body is then one wide block instead of three. `name` is used in tables and errors,
    `seed` for the initial weights.
    """
    if budget is not None and not 0 < budget <= 1:
        raise ModebridgeError(
            f"Expected budget to be a share of the base's FLOPs in (0, 1], but got {budget}; 0.05 is 5 %."
        )
    modes = [Mode({}, {})] * READS[reads] if isinstance(reads, str) else list(reads)
    kind: Kind = "I" if len(modes) == 1 else "II"
    heads = target if isinstance(target, int) else target.heads
    first = take_rows(images, slice(1))
    taps, layout = nets.taps_to_read(net, tap, first)
    tapped = nets.Tapped(net, taps)
    with torch.no_grad(), counting() as counted:
        logits, features = (
            tapped(first) if isinstance(reads, str) else tapped.run(tapped.state_of(modes[0].state), first)
        )
    base = counted()
    read, classes = [features[tap] for tap in taps], logits.shape[1]
    if body is None:
        shape = bodies.joined_shape([feature.shape[1:] for feature in read], layout)
        body = build_body(net, taps, shape, layout, classes * heads, kind, slim, budget, base, wide, seed)
        body = (body if heads == 1 else bodies.Heads(body, heads)).to(
            torch.cat([feature.flatten() for feature in read]).dtype
        )
    flops = check_body(body, read * READS[kind], (classes,) if heads == 1 else (heads, classes), name)
    if budget is not None and flops > budget * base:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take at most {budget:g} of the base's {base:,.0f} multiply-adds, "
            f"but got {flops:,.0f}; use a smaller body or a larger budget."
        )
    plan = None if isinstance(target, int) else target
    own = plan.r if plan else None, name, flops / base if base else None, heads
    return Bridge(body, modes, taps, *own, target=plan, flops=flops, classes=classes)


def build_body(
    net: nn.Module,
    taps: Sequence[str],
    shape: Sequence[int],
    layout: Layout | None,
    outputs: int,
    kind: Kind,
    slim: float,
    budget: float | None,
    base: float,
    wide: bool,
    seed: int | None,
) -> nn.Module:
    """A new body for features of `shape`: within the budget of `base` FLOPs, else the paper's at its tap, else any."""
    norm: nets.Norm = "frn" if any(isinstance(module, nets.FilterResponseNorm) for module in net.modules()) else "bn"
    if budget is not None:
        limits = budget * base, _size(net) or math.inf
        return body_within(shape, layout, outputs, kind, *limits, norm=norm, wide=wide, seed=seed, base=base)[0]
    if isinstance(net, nets.ResNet) and list(taps) == [net.paper_tap]:
        return bodies.body_like(replace(net.spec, classes=outputs), kind, slim, seed=seed)
    return bodies.body_for(shape, outputs, kind, slim, layout=layout, norm=norm, seed=seed)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def inspect(
    net: nn.Module, example: Inputs | Batch, *, slim: float = 2, budget: float | None = None, heads: int = 1
) -> nets.Inspection:
    """List every tap of `net` that a bridge could read, the default choice, and the cost of a bridge at each.

    A copy of the network without weights (or with them, if that fails) runs in evaluation mode; `net` is not changed.

    Args:
        net: any module that maps a batch to logits, or to an object that holds `logits`.
        example: a batch of at least one image, or a dict of tensors that are passed by keyword. Labels, in a pair or in
            a dict, are ignored, and so are values that are not tensors.
        slim: divides the widths of the type I bridges whose costs are shown.
        budget: maximum share of the network's FLOPs, used instead of `slim`; bridges are then wide.
        heads: number of heads of those bridges.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> print(inspect(net, torch.rand(1, 4)))
    Sequential: 48 multiply-adds, 2 classes
        tap  feature  layout  before  after  bridge: FLOPs  params
        0    8        vector   66.7%  33.3%         +83.3%  +79.3%
    ->  1    8        vector   66.7%  33.3%         +83.3%  +79.3%
    1 cannot be tapped: see .refused
    """
    if heads < 1 or not slim > 0 or (budget is not None and not 0 < budget <= 1):
        raise ModebridgeError(
            f"Expected slim above 0, budget in (0, 1] or None and heads of at least 1, but got {slim=}, {budget=}, "
            f"{heads=}; change the value that is out of range."
        )
    seen = nets.find_taps(net, example)

    @cache  # many taps have features of the same shape, and fitting a width to a budget is a search
    def price(shape: Shape, layout: Layout, taps: tuple[str, ...]) -> tuple[float, float] | None:
        outputs = seen.classes * heads
        make = partial(build_body, net, taps, shape, layout, outputs, "I", slim, budget, seen.flops, True, None)
        try:
            body, flops = counted_body(make, [shape])
        except ModebridgeError:  # no bridge is small enough
            return None
        return (flops / seen.flops, _size(body) / _size(net)) if seen.flops and _size(net) else None

    def priced(tap: nets.Tap) -> nets.Tap:
        # Only the paper's tap has a body of its own.
        taps = (tap.name,) if isinstance(net, nets.ResNet) and tap.name == net.paper_tap else ()
        return replace(tap, bridge=price(tuple(tap.shape), tap.layout, taps))

    return replace(seen, taps=tuple(map(priced, seen.taps)), priced=True)


STEP = 8
"""Larger widths are multiples of it; it is the smallest width of bodies with blocks."""

LARGE, SMALL = 14, 4
"""Maps and sequences of at least LARGE are halved by the first block, those below SMALL never."""

NARROW = 0.5
"""One block alone halves the map if it would be narrower than this share of the feature's channels."""


def body_within(
    shape: Sequence[int],
    layout: Layout | None,
    classes: int,
    kind: Kind,
    flops: float,
    params: float = math.inf,
    *,
    norm: nets.Norm = "bn",
    wide: bool = False,
    seed: int | None = None,
    base: float | None = None,
) -> tuple[nn.Module, float]:
    """The widest body with at most `flops` multiply-adds and `params` parameters, and its counted multiply-adds.

    Maps and sequences get three residual blocks (bottlenecks for 512 channels or more), the first of which halves large
    maps, or fewer. Tokens get two token-wise layers, or one. Vectors, and features for which no block fits, get a
    perceptron on the mean over places. With `wide` there is one block, which halves the map if it would otherwise have
    less than half of its channels: best for heads on other modes (docs/frontier.md). If the FLOPs of the `base` are
    given, errors express the budget as a share of them.

    >>> body, counted = body_within((16,), "vector", 4, "I", 1000)
    >>> body.hidden.out_features, counted   # 48 * (16 + 4)
    (48, 960.0)
    """
    layout = bodies.layout_for(shape, layout)
    reads = [shape] * READS[kind]

    def cost(family: Callable[..., nn.Module], width: int) -> tuple[float, int]:
        body, counted = counted_body(partial(family, width), reads)
        return counted, _size(body)

    def fits(family: Callable[..., nn.Module], width: int) -> bool:
        counted, size = cost(family, width)
        return counted <= flops and size <= params

    for family, narrowest in _families(shape, layout, classes, len(reads), norm, wide):
        if fits(family, narrowest):
            width = _widest(partial(fits, family), narrowest)
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            return family(width, generator=generator), cost(family, width)[0]
    least, size = cost(family, narrowest)
    got, smallest = f"{flops:,.0f} multiply-adds", f"{least:,.0f}"
    if least <= flops:
        got, smallest = f"at most {params:,} parameters, as many as the base has", f"{size:,}: pass your own body"
    elif base:
        got, smallest = f"{flops / base:.2g} of the base's FLOPs", _rounded_up(least / base)
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
    shape: Sequence[int], layout: Layout, classes: int, reads: int, norm: nets.Norm, alone: bool
) -> Iterator[tuple[Callable[..., nn.Module], int]]:
    """Functions from a width to a body, from the best to the cheapest, each with its smallest width."""
    channels = bodies.channels_of(shape, layout)
    inputs = channels * reads
    sides = () if layout in ("tokens", "vector") else shape[:2] if layout == "map, channels last" else shape[1:]
    if layout == "tokens" and shape[0] > 1:
        for blocks in (2, 1):
            yield partial(bodies.TokenBody, inputs, classes=classes, blocks=blocks), STEP
    elif max(sides, default=1) > 1:
        # On wide maps plain blocks spend the whole budget on their first layer: squeeze first, as nets.ResNet-50 does.
        block = nets.BottleneckBlock if channels >= 2 * bodies.WIDE else nets.BasicBlock
        residual = partial(_residual, inputs, classes=classes, block=block, norm=norm, layout=layout)
        # On small maps, wide blocks at half the size beat fewer and narrower ones (digits, docs/frontier.md).
        strides = (2,) if min(sides) >= LARGE else (1, 2) if min(sides) >= SMALL else (1,)
        for blocks in (1,) if alone else (3, 2, 1):
            for stride in strides:
                # One block at full size only if it can be wide; the last stride takes what fits.
                wide = alone and stride < strides[-1]
                least = STEP * math.ceil(NARROW * channels / STEP) if wide else STEP
                yield partial(residual, [stride, 1, 1][:blocks]), least
    yield partial(bodies.VectorBody, inputs, classes=classes, layout=layout), 1


def _residual(inputs: int, strides: Sequence[int], width: int, **options: Any) -> nn.Module:
    return bodies.ResidualBody(inputs, [(width, stride) for stride in strides], **options)


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
