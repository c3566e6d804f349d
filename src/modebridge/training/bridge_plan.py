"""What a bridge is before training: its body, the features it reads, and its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import nn

from modebridge.bridges import (
    READS,
    Bridge,
    Kind,
    Target,
    choose_body,
    curve_target,
    heads_target,
    label_target,
    mode_target,
)
from modebridge.curves import Curve, check_r
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes
from modebridge.types import Inputs

__all__ = ["Aim", "BridgePlan", "check_choices", "listed", "other_targets", "plan_bridge"]

Aim: TypeAlias = Target | Literal["curve", "labels"]
"""What a bridge, or one of its heads, learns to predict."""


@dataclass(frozen=True)
class BridgePlan:
    """One bridge to train.

    Args:
        bridge: the bridge.
        reads: the modes whose features it reads.
        target: what it learns.
        of_modes: whether it was planned for modes without a target, and so has one head per mode that it does not read.
    """

    bridge: Bridge
    reads: tuple[Mode, ...]
    target: Target
    of_modes: bool = False

    def __repr__(self) -> str:
        return f"BridgePlan({self.bridge.extra_repr()}, target={self.target.what})"


def plan_bridge(
    net: nn.Module,
    curve: Curve | Mode | Sequence[Mode],
    images: Inputs,
    *,
    kind: Kind = "I",
    source: Literal["start", "end"] = "start",
    tap: str | Sequence[str] | None = None,
    slim: float = 2,
    budget: float | None = None,
    wide: bool | None = None,
    r: float = 0.5,
    target: Aim | Sequence[Aim] = "curve",
    body: nn.Module | None = None,
    name: str = "bridge",
    seed: int = 0,
) -> BridgePlan:
    """Plan a bridge for a curve before training it.

    Args:
        net: the base network.
        curve: the curve between the two modes; its point at r is the paper's target. Modes may be given instead of a
            curve: the bridge reads the first (type II: the first two) and, unless `target` is given, gets one head for
            each of the others.
        images: a few images (or inputs by name), to find the shape of the features.
        kind: "I" reads one end, "II" both.
        source: the end that a type I bridge reads.
        tap: where features are read, one place or several; None uses the choice of `modebridge.inspect`, which for the
            paper's networks is the paper's.
        slim: divisor of the widths; 2 is the paper's small bridge, 1 its medium one.
        budget: maximum share of the base's FLOPs (0.05 for 5 %), used instead of `slim`: the widest body that fits is
            built. Its share of the parameters may be much larger (`bridge.parameter_share`).
        wide: one wide block within the budget instead of three; None for heads on other modes (docs/frontier.md).
        r: the position on the curve to predict.
        target: "curve", "labels" (a control), or any `Target`; a list gives the bridge one head per target on a shared
            trunk.
        body: your own module from feature(s) to logits, used instead of building one; its parameters with
            `requires_grad=False` are not trained.
        name: the bridge's name in tables and errors.
        seed: seed for the bridge's initial weights.

    Returns:
        The plan; `plan.bridge.share` and `.parameter_share` are the bridge's FLOPs and parameters relative to the base.
    """
    check_choices(net, curve, kind, source, r)
    if isinstance(curve, Curve):
        modes = [curve.start, curve.end] if source == "start" or kind == "II" else [curve.end]
    else:
        modes = listed(curve)
    reads = tuple(modes[: READS[kind]])
    of_modes = isinstance(target, str) and target == "curve" and not isinstance(curve, Curve)
    if of_modes:
        aim = heads_target(other_targets(modes, kind))
    elif isinstance(target, Target | str) or not isinstance(target, Sequence):
        aim = _aim(target, curve, r)
    else:
        aim = heads_target([_aim(one, curve, r) for one in target])
    if aim.modes:
        check_modes(net, aim.modes, 1, "a bridge's target")
    chosen = choose_body(
        net,
        images,
        kind,
        tap=tap,
        heads=aim.heads,
        slim=slim,
        budget=budget,
        wide=of_modes if wide is None else wide,
        body=body,
        state=reads[0].state,
        name=name,
        seed=seed,
    )
    return BridgePlan(
        Bridge(chosen.body, reads, chosen.taps, aim.r, name, chosen.share, aim.heads), reads, aim, of_modes
    )


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


def _aim(target: object, curve: Curve | Mode | Sequence[Mode], r: float) -> Target:
    if target == "curve" and isinstance(curve, Curve):
        return curve_target(curve, r)
    if target == "labels":
        return label_target()
    if not isinstance(target, Target):
        raise ModebridgeError(
            f"Expected target to be 'curve' (for a bridge with a curve), 'labels' or a Target, but got '{target}'; "
            "see modebridge.bridges for the others."
        )
    return target


def check_choices(net: nn.Module, curve: Curve | Mode | Sequence[Mode], kind: str, source: str, r: float) -> None:
    """Raise an error if no bridge can be planned with these choices."""
    check_r(r)
    if isinstance(curve, Curve):
        check_modes(net, [curve.start, curve.end], 2, "a bridge's curve")
    elif isinstance(curve, Mode | Sequence):
        check_modes(net, listed(curve), 2 if kind == "II" else 1, "a bridge")
        if source == "end":
            raise ModebridgeError(
                "Expected source to be 'start' for a bridge without a curve, which reads the first mode, but got "
                "'end'; put the mode to read first."
            )
    else:
        raise ModebridgeError(
            f"Expected a curve or modes for a bridge, but got {type(curve).__name__}; create a curve with fit_curve, "
            "or pass a list of modes."
        )
    if kind not in ("I", "II"):
        raise ModebridgeError(f"Expected the kind of bridge to be 'I' or 'II', but got '{kind}'; choose one.")
    if source not in ("start", "end"):
        raise ModebridgeError(f"Expected source to be 'start' or 'end', but got '{source}'; choose one.")
