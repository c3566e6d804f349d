"""Build a bridge before training: its taps, its body, its cost and its target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from modebridge import nets
from modebridge.batches import take_rows
from modebridge.bridges import bodies
from modebridge.bridges.bridge import READS, Aim, Bridge, Kind, Target, check_body, check_choices, chosen_target, listed
from modebridge.bridges.budget import body_within, counted_body, size_of
from modebridge.curves import Curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes, check_net
from modebridge.nets.flops import Shape, counting
from modebridge.types import Batch, Inputs, Layout

DENSE = 10
"""How many times its share of the FLOPs a body may have of the parameters: late layers compute little with many."""


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
    budget, heads on other modes are one wide block (docs/results/default.md).
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
    check_budget(budget)
    modes = [Mode({}, {})] * READS[reads] if isinstance(reads, str) else list(reads)
    kind: Kind = "I" if len(modes) == 1 else "II"
    heads = target if isinstance(target, int) else target.heads
    first = take_rows(images, slice(1))
    taps, layout, last = nets.taps_to_read(net, tap, first)
    tapped = nets.Tapped(net, [*taps, *([last.name] if last else [])])
    with torch.no_grad(), counting() as counted:
        logits, features = (
            tapped(first) if isinstance(reads, str) else tapped.run(tapped.state_of(modes[0].state), first)
        )
    base = counted()
    *places, classes = logits.shape[1:]
    if body is None:

        def built(taps: Sequence[str], layout: Layout | None) -> nn.Module:
            shape = joined_shape([features[tap].shape[1:] for tap in taps], layout)
            options: dict[str, Any] = {"wide": wide, "dense": bool(places), "seed": seed}
            return build_body(net, taps, shape, layout, classes * heads, kind, slim, budget, base, **options)

        body = built(taps, layout)
        if last and budget is not None and reads_means(body):
            taps, body = [last.name], built([last.name], last.layout)
        body = (body if heads == 1 else bodies.Heads(body, heads)).to(
            torch.cat([features[tap].flatten() for tap in taps]).dtype
        )
    read = [features[tap] for tap in taps]
    wanted = (classes,) if heads == 1 else (heads, classes)
    flops = check_body(body, read * READS[kind], wanted, len(places), name)
    if budget is not None and flops > budget * base:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take at most {budget:g} of the base's {base:,.0f} multiply-adds, "
            f"but got {flops:,.0f}; use a smaller body or a larger budget."
        )
    aim, share = None if isinstance(target, int) else target, flops / base if base else None
    return Bridge(body, modes, taps, None, name, share, heads, target=aim, flops=flops, outputs=logits.shape[1:])


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
    *,
    wide: bool,
    dense: bool,
    seed: int | None,
) -> nn.Module:
    """A new body for features of `shape`: within the budget of `base` FLOPs, else the paper's at its tap, else any.

    A `dense` one has logits for every place of its features.
    """
    norm: nets.Norm = "frn" if any(isinstance(module, nets.FilterResponseNorm) for module in net.modules()) else "bn"
    if budget is not None:
        limits = budget * base, min(1, DENSE * budget) * size_of(net) or math.inf
        options: dict[str, Any] = {"norm": norm, "wide": wide, "dense": dense, "seed": seed, "base": base}
        return body_within(shape, layout, outputs, kind, *limits, **options)[0]
    if isinstance(net, nets.ResNet) and list(taps) == [net.paper_tap]:
        return bodies.body_like(replace(net.spec, classes=outputs), kind, slim, seed=seed)
    return bodies.body_for(shape, outputs, kind, slim, layout=layout, norm=norm, dense=dense, seed=seed)


def reads_means(body: nn.Module) -> bool:
    """Whether a body is a perceptron on the mean over places: a small budget leaves room for nothing else."""
    return isinstance(body, bodies.VectorBody) and not body.dense


def joined_shape(shapes: Sequence[Sequence[int]], layout: Layout | None) -> tuple[int, ...]:
    """The shape of features concatenated along channels, at the smallest size.

    >>> joined_shape([(8, 4, 4), (4, 8, 8)], "map"), joined_shape([(17, 8), (17, 8)], "tokens")
    ((12, 4, 4), (17, 16))
    """
    if len(shapes) == 1:
        return tuple(shapes[0])
    known = bodies.layout_for(shapes[0], layout)
    axis = 0 if known in ("map", "sequence", "volume") else -1
    if len({len(shape) for shape in shapes}) > 1 or (known == "tokens" and len({shape[0] for shape in shapes}) > 1):
        raise ModebridgeError(
            f"Expected features of matching axes, but got {[tuple(shape) for shape in shapes]}; choose other taps."
        )
    joined = [min(sides) for sides in zip(*shapes, strict=True)]
    joined[axis] = sum(shape[axis] for shape in shapes)
    return tuple(joined)


def check_budget(budget: object) -> None:
    if budget is not None and not (isinstance(budget, int | float) and 0 < budget <= 1):
        raise ModebridgeError(
            f"Expected budget to be a share of the base's FLOPs in (0, 1], but got {budget!r}; 0.05 is 5 %."
        )


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

    Returns:
        The taps with their costs; prints as a table.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> print(inspect(net, torch.rand(1, 4)))
    Sequential: 48 multiply-adds, 2 classes
        tap  feature  layout  before  after  bridge: FLOPs  params
        0    8        vector   66.7%  33.3%         +83.3%  +79.3%
    ->  1    8        vector   66.7%  33.3%         +83.3%  +79.3%
    1 cannot be tapped: see .refused
    """
    check_net(net)
    check_budget(budget)
    if heads < 1 or not slim > 0:
        raise ModebridgeError(
            f"Expected slim above 0 and heads of at least 1, but got {slim=}, {heads=}; change the one out of range."
        )
    seen = nets.find_taps(net, example)

    @cache  # many taps have features of the same shape, and fitting a width to a budget is a search
    def fitted(shape: Shape, layout: Layout, taps: tuple[str, ...]) -> tuple[nn.Module, float] | None:
        outputs = seen.classes * heads
        options: dict[str, Any] = {"wide": True, "dense": seen.dense, "seed": None}
        make = partial(build_body, net, taps, shape, layout, outputs, "I", slim, budget, seen.flops, **options)
        try:
            return counted_body(make, [shape])
        except ModebridgeError:  # no bridge is small enough
            return None

    def body_at(tap: nets.Tap) -> tuple[nn.Module, float] | None:
        # Only the paper's tap has a body of its own.
        taps = (tap.name,) if isinstance(net, nets.ResNet) and tap.name == net.paper_tap else ()
        return fitted(tuple(tap.shape), tap.layout, taps)

    def priced(tap: nets.Tap) -> nets.Tap:
        if (found := body_at(tap)) is None or not (seen.flops and size_of(net)):
            return replace(tap, bridge=None)
        return replace(tap, bridge=(found[1] / seen.flops, size_of(found[0]) / size_of(net)))

    preferred, last = seen.preferred, seen.last_map if seen.taps and budget is not None else None
    if last and (found := body_at(seen.chosen)) and reads_means(found[0]):
        preferred = last.name
    return replace(seen, taps=tuple(map(priced, seen.taps)), priced=True, preferred=preferred)
