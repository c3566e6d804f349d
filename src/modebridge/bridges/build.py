"""Build a bridge before training: its taps, its body, its cost and what it will learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.batches import map_inputs
from modebridge.bridges.bodies import Heads
from modebridge.bridges.bridge import (
    READS,
    Bridge,
    Kind,
    Target,
    curve_target,
    heads_target,
    label_target,
    mode_target,
)
from modebridge.bridges.sizes import body_for, body_like, body_within, joined_shape
from modebridge.curves import Curve
from modebridge.errors import ModebridgeError, first_line
from modebridge.modes import Mode, check_modes
from modebridge.nets import FilterResponseNorm, Norm, ResNet, Tapped, frozen_copy, taps_to_read
from modebridge.nets.flops import counting
from modebridge.types import Inputs, Layout

__all__ = ["Aim", "build_body", "build_bridge", "check_choices", "listed", "other_targets", "plan_bridge"]

Aim: TypeAlias = Target | Literal["curve", "labels"]
"""What a bridge, or one of its heads, learns to predict."""


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
    reads = [modes.start, modes.end] if isinstance(modes, Curve) else listed(modes)
    if isinstance(target, str) and target == "curve" and not isinstance(modes, Curve):
        aim = heads_target(other_targets(reads, kind))
    elif isinstance(target, Target | str) or not isinstance(target, Sequence):
        aim = _aim(target, modes)
    else:
        aim = heads_target([_aim(one, modes) for one in target])
    if aim.modes:
        check_modes(net, aim.modes, 1, "a bridge's target")
    options: dict[str, Any] = {"tap": tap, "slim": slim, "budget": budget, "body": body, "name": name, "seed": seed}
    return build_bridge(net, images, reads[: READS[kind]], aim, wide=aim.of_modes, **options)


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


def listed(modes: Mode | Sequence[Mode]) -> list[Mode]:
    """Modes as a list, even if only one is given."""
    return [modes] if isinstance(modes, Mode) else list(modes)


def other_targets(modes: Sequence[Mode], kind: Kind) -> list[Target]:
    """One target for every mode that a bridge of this type does not read; raises an error if there are none."""
    others = modes[READS[kind] :]
    if not others:
        raise ModebridgeError(
            f"Expected a type {kind} bridge without a curve to have a target, or more modes than the {READS[kind]} "
            f"that it reads, but got {len(modes)} and no target; add modes to learn from, or pass a curve or target=."
        )
    if len({mode.id for mode in modes}) < len(modes):
        raise ModebridgeError(
            "Expected the modes of a bridge without a curve to differ, but got one of them twice; pass each mode once: "
            "the first is read, and each of the others gets a head."
        )
    return [mode_target(mode) for mode in others]


def _aim(target: object, modes: Curve | Mode | Sequence[Mode]) -> Target:
    if target == "curve" and isinstance(modes, Curve):
        return curve_target(modes)
    if target == "labels":
        return label_target()
    if not isinstance(target, Target):
        raise ModebridgeError(
            f"Expected target to be 'curve' (for a bridge with a curve), 'labels' or a Target, but got '{target}'; "
            "see modebridge.bridges for the others."
        )
    return target


def check_choices(net: nn.Module, modes: Curve | Mode | Sequence[Mode], kind: str) -> None:
    """Raise an error if no bridge can be planned with these choices."""
    if kind not in READS:
        raise ModebridgeError(f"Expected the kind of bridge to be 'I' or 'II', but got '{kind}'; choose one.")
    if isinstance(modes, Curve):
        check_modes(net, [modes.start, modes.end], 2, "a bridge's curve")
    elif isinstance(modes, Mode | Sequence):
        check_modes(net, listed(modes), 2 if kind == "II" else 1, "a bridge")
    else:
        raise ModebridgeError(
            f"Expected a curve or modes for a bridge, but got {type(modes).__name__}; create a curve with fit_curve, "
            "or pass a list of modes."
        )
