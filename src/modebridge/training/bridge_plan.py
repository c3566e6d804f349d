"""What a bridge is before it is trained: its body, whose features it reads, and what it is to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import nn

from modebridge.bridges import (
    READS,
    Bridge,
    Design,
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

__all__ = ["Aim", "BridgePlan", "check_choices", "listed", "plan_bridge"]

Aim: TypeAlias = Target | Literal["curve", "labels"]
"""What a bridge, or a head of one, is to say."""


@dataclass(frozen=True)
class BridgePlan:
    """One bridge to train: what it is, whose features it reads and what it is to say."""

    bridge: Bridge
    reads: tuple[Mode, ...]
    target: Target

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
    design: Design = "plain",
    r: float = 0.5,
    target: Aim | Sequence[Aim] = "curve",
    body: nn.Module | None = None,
    name: str = "bridge",
    seed: int = 0,
) -> BridgePlan:
    """Decide on a bridge of a curve before training it.

    Args:
        net: the base network.
        curve: between the two modes; its point at r is the paper's target. Or modes, without a curve: the first is read
            (of type II the first two), and unless `target` says otherwise there is a head for each of the others.
        images: a few images (or inputs by name), to see the feature's shape.
        kind: "I" reads one end, "II" both.
        source: which end a type I bridge reads.
        tap: where the feature is read, or several places; None takes what `modebridge.inspect` chooses, the paper's
            place in its networks.
        slim: divides the widths; 2 is the paper's small bridge, 1 its medium one.
        budget: at most this share of the base's FLOPs, 0.05 for 5 %, instead of `slim`: the widest body that fits; its
            share of the parameters may be far larger (`bridge.parameter_share`).
        design: how the blocks of a built body look on a map or a sequence: "plain", as the base's; "bottleneck",
            "depthwise" or "low-rank", of cheaper convolutions and so wider within a budget; "shallow", one block.
        r: the position on the curve to predict.
        target: "curve", "labels" (a control), or any `Target`; a list of them gives the bridge one head each, on one
            trunk.
        body: a module of your own from feature(s) to logits, instead of the built one; what has `requires_grad=False`
            in it stays as it is.
        name: how tables and errors call it.
        seed: of the bridge's weights.

    Returns:
        The plan; `plan.bridge.share` and `.parameter_share` are its FLOPs and parameters in units of the base, counted.
    """
    check_choices(net, curve, kind, source, r)
    if isinstance(curve, Curve):
        modes = [curve.start, curve.end] if source == "start" or kind == "II" else [curve.end]
    else:
        modes = listed(curve)
    reads = tuple(modes[: READS[kind]])
    if target == "curve" and not isinstance(curve, Curve):
        aim = _others(modes, kind)
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
        design=design,
        body=body,
        state=reads[0].state,
        name=name,
        seed=seed,
    )
    return BridgePlan(Bridge(chosen.body, reads, chosen.taps, aim.r, name, chosen.share, aim.heads), reads, aim)


def listed(modes: Mode | Sequence[Mode]) -> list[Mode]:
    """Modes as a list, also where one is given alone."""
    return [modes] if isinstance(modes, Mode) else list(modes)


def _others(modes: Sequence[Mode], kind: Kind) -> Target:
    others = modes[READS[kind] :]
    if not others:
        raise ModebridgeError(
            f"Expected a type {kind} bridge without a curve to be given more modes than the {READS[kind]} that it "
            f"reads, or its target, but got {len(modes)} and no target; give further modes to learn, a curve, or "
            "target=."
        )
    if len({mode.id for mode in modes}) < len(modes):
        raise ModebridgeError(
            "Expected the modes of a bridge without a curve to differ, but got one of them twice; give each once: the "
            "first is read, and there is a head for each of the others."
        )
    return heads_target([mode_target(mode) for mode in others])


def _aim(target: object, curve: Curve | Mode | Sequence[Mode], r: float) -> Target:
    if target == "curve" and isinstance(curve, Curve):
        return curve_target(curve, r)
    if target == "labels":
        return label_target()
    if not isinstance(target, Target):
        raise ModebridgeError(
            f"Expected target to be 'curve' (of a bridge with a curve), 'labels' or a Target, but got '{target}'; "
            "see modebridge.bridges for the others."
        )
    return target


def check_choices(net: nn.Module, curve: Curve | Mode | Sequence[Mode], kind: str, source: str, r: float) -> None:
    """Refuse what no bridge can be planned with."""
    check_r(r)
    if isinstance(curve, Curve):
        check_modes(net, [curve.start, curve.end], 2, "a bridge's curve")
    elif isinstance(curve, Mode | Sequence):
        check_modes(net, listed(curve), 2 if kind == "II" else 1, "a bridge")
        if source == "end":
            raise ModebridgeError(
                "Expected source to be 'start' for a bridge without a curve, which reads the first mode, but got "
                "'end'; put the mode that is to be read first."
            )
    else:
        raise ModebridgeError(
            f"Expected a bridge to be given a curve or modes, but got {type(curve).__name__}; make a curve with "
            "fit_curve, or give a list of modes."
        )
    if kind not in ("I", "II"):
        raise ModebridgeError(f"Expected the kind of bridge to be 'I' or 'II', but got '{kind}'; choose one.")
    if source not in ("start", "end"):
        raise ModebridgeError(f"Expected source to be 'start' or 'end', but got '{source}'; choose one.")
