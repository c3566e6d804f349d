"""Build a bridge before training: its taps, its body (the widest within a budget of FLOPs), its cost and its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from modebridge.batches import map_inputs
from modebridge.bridges.bodies import Heads
from modebridge.bridges.bridge import READS, Aim, Bridge, Kind, Target, check_choices, chosen_target, listed
from modebridge.bridges.sizes import body_for, body_like, body_within, counted_body, joined_shape
from modebridge.curves import Curve
from modebridge.errors import ModebridgeError, first_line
from modebridge.modes import Mode, check_modes
from modebridge.nets import (
    FilterResponseNorm,
    Inspection,
    Norm,
    ResNet,
    Tap,
    Tapped,
    find_taps,
    frozen_copy,
    taps_to_read,
)
from modebridge.nets.flops import Shape, counting
from modebridge.types import Batch, Inputs, Layout


def plan_bridge(
    net: nn.Module,
    modes: Curve | Mode | Sequence[Mode],
    images: Inputs,
    *,
    kind: Kind = "I",
    tap: str | Sequence[str] | None = None,
    slim: float = 2,
    budget: float | None = None,
    target: Aim | Sequence[Aim] = "curve",
    body: nn.Module | None = None,
    name: str = "bridge",
    seed: int = 0,
) -> Bridge:
    """A bridge before training, on modes or for a curve; most arguments are those of `fit_bridge`.

    A few `images` (or inputs by name) show the shape of the features. `slim` divides the widths: 2 is the paper's small
    bridge, 1 its medium one. A `budget` is used instead, and heads on other modes are then one wide block
    (docs/frontier.md). `name` is used in tables and errors, `seed` for the bridge's initial weights.
    """
    check_choices(net, modes, kind)
    aim = chosen_target(target, modes, kind)
    if aim.modes:
        check_modes(net, aim.modes, 1, "a bridge's target")
    options: dict[str, Any] = {"tap": tap, "slim": slim, "budget": budget, "body": body, "name": name, "seed": seed}
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
    number of heads alone. With `wide`, a body within a budget is one wide block instead of three. The other arguments
    are those of `plan_bridge`.
    """
    if budget is not None and not 0 < budget <= 1:
        raise ModebridgeError(
            f"Expected budget to be a share of the base's FLOPs in (0, 1], but got {budget}; 0.05 is 5 %."
        )
    modes = [Mode({}, {})] * READS[reads] if isinstance(reads, str) else list(reads)
    kind: Kind = "I" if len(modes) == 1 else "II"
    heads = target if isinstance(target, int) else target.heads
    first = map_inputs(lambda tensor: tensor[:1], images)
    taps, layout = taps_to_read(net, tap, first)
    tapped = Tapped(net, taps)
    with torch.no_grad(), counting() as counted:
        logits, features = (
            tapped(first) if isinstance(reads, str) else tapped.run(tapped.state_of(modes[0].state), first)
        )
    base = counted()
    read, classes = [features[tap] for tap in taps], logits.shape[1]
    if body is None:
        shape = joined_shape([feature.shape[1:] for feature in read], layout)
        body = build_body(net, taps, shape, layout, classes * heads, kind, slim, budget, base, wide, seed)
        body = (body if heads == 1 else Heads(body, heads)).to(torch.cat([feature.flatten() for feature in read]).dtype)
    flops = _check_body(body, read * READS[kind], (classes,) if heads == 1 else (heads, classes), name)
    if budget is not None and flops > budget * base:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take at most {budget:g} of the base's {base:,.0f} multiply-adds, "
            f"but got {flops:,.0f}; use a smaller body or a larger budget."
        )
    plan, share = None if isinstance(target, int) else target, flops / base if base else None
    own = plan.r if plan else None, name, share, heads
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
    norm: Norm = "frn" if any(isinstance(module, FilterResponseNorm) for module in net.modules()) else "bn"
    if budget is not None:
        flops = budget * base
        return body_within(shape, layout, outputs, kind, flops, norm=norm, wide=wide, seed=seed, base=base)[0]
    if isinstance(net, ResNet) and list(taps) == [net.paper_tap]:
        return body_like(replace(net.spec, classes=outputs), kind, slim, seed=seed)
    return body_for(shape, outputs, kind, slim, layout=layout, norm=norm, seed=seed)


@torch.no_grad()
def _check_body(body: nn.Module, features: Sequence[Tensor], logits: tuple[int, ...], name: str) -> float:
    """Run the body on one image to find errors before the first step; returns its multiply-adds."""
    shapes = ", ".join(str(tuple(feature.shape[1:])) for feature in features)
    try:
        with counting() as counted:
            out = frozen_copy(body)(*features)
    except (RuntimeError, TypeError) as error:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take features of {shapes}, but got '{first_line(error)}'; "
            "adapt it to the tap."
        ) from error
    expected = ", ".join(map(str, ("batch", *logits)))
    if not isinstance(out, Tensor) or out.shape != (1, *logits):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ModebridgeError(
            f"Expected the body of '{name}' to return logits of ({expected}), but got {got}; adapt its last layer."
        )
    return counted()


def inspect(
    net: nn.Module, example: Inputs | Batch, *, slim: float = 2, budget: float | None = None, heads: int = 1
) -> Inspection:
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
    seen = find_taps(net, example)
    size = sum(parameter.numel() for parameter in net.parameters())

    @cache  # many taps have features of the same shape, and fitting a width to a budget is a search
    def price(shape: Shape, layout: Layout, taps: tuple[str, ...]) -> tuple[float, float] | None:
        outputs = seen.classes * heads
        make = partial(build_body, net, taps, shape, layout, outputs, "I", slim, budget, seen.flops, True, None)
        try:
            body, flops = counted_body(make, [shape])
        except ModebridgeError:  # no bridge is small enough
            return None
        params = sum(parameter.numel() for parameter in body.parameters())
        return (flops / seen.flops, params / size) if seen.flops and size else None

    def priced(tap: Tap) -> Tap:
        # Only the paper's tap has a body of its own.
        taps = (tap.name,) if isinstance(net, ResNet) and tap.name == net.paper_tap else ()
        return replace(tap, bridge=price(tuple(tap.shape), tap.layout, taps))

    return replace(seen, taps=tuple(map(priced, seen.taps)), priced=True)
