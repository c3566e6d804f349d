"""A bridge: a small network that predicts other networks' outputs from features of modes, and its targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from modebridge import trees
from modebridge.curves import Curve
from modebridge.errors import ModebridgeError, first_line
from modebridge.modes import Mode, Saved, check_modes
from modebridge.nets import frozen_copy
from modebridge.nets.flops import counting
from modebridge.nets.quirks import check_runs

Kind: TypeAlias = Literal["I", "II"]

READS: dict[Kind, int] = {"I": 1, "II": 2}
"""Number of modes that a bridge of each type reads."""


@dataclass(frozen=True)
class Target:
    """What a bridge learns: the mean probability of some frozen networks; without networks, the labels."""

    modes: tuple[Mode, ...]
    r: float | None  # position on a curve, if the target is one
    parts: tuple[Target, ...] = ()  # the target of each head, if there are several

    @property
    def heads(self) -> int:
        """Number of heads of the bridge."""
        return len(self.parts) or 1

    @property
    def of_modes(self) -> bool:
        """Whether all heads learn other modes, or labels beside them: wide blocks and CutMix suit such a bridge."""
        parts = self.parts or (self,)
        return all(part.r is None and len(part.modes) < 2 for part in parts) and any(part.modes for part in parts)


Aim: TypeAlias = Target | Literal["curve", "labels"]
"""What a bridge, or one of its heads, learns to predict."""


def curve_target(curve: Curve, r: float = 0.5) -> Target:
    """The network on the curve at r: the paper's target."""
    return Target((curve.at(r),), r)


def mode_target(mode: Mode) -> Target:
    """Another mode, which needs no curve."""
    return Target((mode,), None)


def ensemble_target(modes: Sequence[Mode]) -> Target:
    """The mean probability of several modes: plain distillation of a deep ensemble."""
    if not modes:
        raise ModebridgeError("Expected an ensemble as target to have modes, but got none; pass at least one.")
    return Target(tuple(modes), None)


def label_target() -> Target:
    """The (mixed) labels: the control without a second network."""
    return Target((), None)


def heads_target(targets: Sequence[Target]) -> Target:
    """One head per target on a shared trunk: each head is a member of the mean, and the losses are summed."""
    if not targets:
        raise ModebridgeError("Expected a bridge to have at least one head, but got no target; pass one per head.")
    for target in targets:
        if target.parts:
            raise ModebridgeError(
                f"Expected heads to consist of plain targets, but got one with {target.heads} heads; use curve_target, "
                "mode_target, ensemble_target or label_target."
            )
    modes = tuple({mode.id: mode for target in targets for mode in target.modes}.values())
    return targets[0] if len(targets) == 1 else Target(modes, None, tuple(targets))


def listed(modes: Curve | Mode | Sequence[Mode]) -> list[Mode]:
    """Modes as a list, even if only one is given; of a curve, its ends."""
    if isinstance(modes, Curve):
        return [modes.start, modes.end]
    return [modes] if isinstance(modes, Mode) else list(modes)


def check_choices(net: nn.Module, modes: Curve | Mode | Sequence[Mode], kind: str) -> None:
    """Raise an error if no bridge can be planned with these choices."""
    if kind not in READS:
        raise ModebridgeError(f"Expected the kind of bridge to be 'I' or 'II', but got '{kind}'; choose one.")
    if not isinstance(modes, Curve | Mode | Sequence):
        raise ModebridgeError(
            f"Expected a curve or modes for a bridge, but got {type(modes).__name__}; create a curve with fit_curve, "
            "or pass a list of modes."
        )
    check_runs(net, values=False)
    what = "a bridge's curve" if isinstance(modes, Curve) else "a bridge"
    check_modes(net, listed(modes), 2 if kind == "II" else 1, what)


def other_targets(modes: Sequence[Mode], kind: Kind) -> list[Target]:
    """One target for every mode that a bridge of this type does not read; raises an error if there are none."""
    others = modes[READS[kind] :]
    if not others:
        raise ModebridgeError(
            f"Expected another network to imitate beside the {READS[kind]} that a type {kind} bridge reads, but got "
            f"{len(modes)} in all; add networks, or pass a curve or target=."
        )
    if len({mode.id for mode in modes}) < len(modes):
        raise ModebridgeError(
            "Expected the modes of a bridge without a curve to differ, but got one of them twice; pass each mode once: "
            "the first is read, and each of the others gets a head."
        )
    return [mode_target(mode) for mode in others]


def chosen_target(target: Aim | Sequence[Aim], modes: Curve | Mode | Sequence[Mode], kind: Kind) -> Target:
    """What a bridge learns: by default the midpoint of its curve, or without a curve the modes it does not read."""
    if isinstance(target, str) and target == "curve" and not isinstance(modes, Curve):
        return heads_target(other_targets(listed(modes), kind))
    if isinstance(target, Sequence) and not isinstance(target, str):
        return heads_target([_one_target(one, modes) for one in target])
    return _one_target(target, modes)


def _one_target(target: object, modes: Curve | Mode | Sequence[Mode]) -> Target:
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


class Bridge(nn.Module, Saved):
    """A body and what it reads: the taps of one mode (type I) or of two (type II, in order).

    An untrained bridge also has the target that it will learn and the modes that it reads.

    Args:
        body: maps the features to logits (B, K), or to (B, h, K) for h heads; followed by places, which may be fewer
            than those of the network, if that classifies places.
        reads: the modes whose features it reads; stored as hashes of their content.
        tap: name of the submodule whose output is the feature; several names for several features per mode.
        r: the predicted position on the curve, if there is no target to tell; None if it is not on a curve.
        name: name in tables.
        share: counted FLOPs relative to one base network; None if not counted.
        heads: number of heads h, if there is no target to tell; each is a member of ensembles.
        target: what it will learn; None for a trained bridge.
        flops: counted multiply-adds for one image; NaN if not counted.
        outputs: shape (*P, K) of the logits of one image; () if not known.
    """

    def __init__(
        self,
        body: nn.Module,
        reads: Sequence[Mode],
        tap: str | Sequence[str],
        r: float | None = 0.5,
        name: str = "bridge",
        share: float | None = None,
        heads: int = 1,
        *,
        target: Target | None = None,
        flops: float = math.nan,
        outputs: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if len(reads) not in (1, 2):
            raise ModebridgeError(
                f"Expected a bridge to read one mode (type I) or two (type II), but got {len(reads)}; pass one or two."
            )
        self.body, self.name, self.target = body, name, target
        self.r, self.heads = (r, heads) if target is None else (target.r, target.heads)
        self.reads = tuple(mode.id for mode in reads)
        self.taps = (tap,) if isinstance(tap, str) else tuple(tap)
        self.share, self.flops, self.outputs = share, flops, tuple(outputs)
        self.modes: tuple[Mode, ...] = () if target is None else tuple(reads)
        self._base = trees.size(reads[0].params)

    @property
    def kind(self) -> Kind:
        """Type "I" or "II"."""
        return "I" if len(self.reads) == 1 else "II"

    @property
    def tap(self) -> str:
        """The tap or taps as text."""
        return " + ".join(self.taps)

    @property
    def places(self) -> list[tuple[int, str]]:
        """The input features in order: index of the mode in `reads`, and tap."""
        return [(k, tap) for k in range(len(self.reads)) for tap in self.taps]

    @property
    def params(self) -> int:
        """Number of its parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def parameter_share(self) -> float | None:
        """Its parameters relative to one base network, if that has any; a cheap bridge at a deep tap can have many."""
        return self.params / self._base if self._base else None

    def forward(self, *features: Tensor) -> Tensor:
        """Logits (B, K), or (B, h, K), from the features of the modes in `reads`, in the order of `places`."""
        if len(features) != len(self.places):
            raise ModebridgeError(
                f"Expected a type {self.kind} bridge to get {len(self.places)} features, "
                f"but got {len(features)}; pass one per mode it reads and tap."
            )
        # Copies: other bridges read the same features, and a body may change its inputs in place.
        return self.body(*[feature.clone() for feature in features])  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        share = "" if self.share is None else f", share={self.share:.2%} of the FLOPs"
        if self.parameter_share is not None:
            share += f"{',' if not share else ' and'} {self.parameter_share:.2%} of the parameters"
        heads = f", {self.heads} heads" if self.heads > 1 else ""
        r = "" if self.r is None else f", r={self.r:g}"
        return f"type {self.kind}, tap={self.tap}{r}, name={self.name}{heads}{share}"

    def head_logits(self, *features: Tensor) -> list[Tensor]:
        """The logits (B, K), or (B, K, *P), of each head."""
        logits = self(*features)
        return [logits] if self.heads == 1 else list(logits.unbind(dim=1))


def target_of(name: str, bridge: Bridge) -> Target:
    """What an untrained bridge will learn; raises an error if it has no target."""
    if bridge.target is None:
        raise ModebridgeError(
            f"Expected bridge '{name}' to have a target to learn, but it has none; build it with plan_bridge."
        )
    return bridge.target


@torch.no_grad()
def check_body(body: nn.Module, features: Sequence[Tensor], logits: tuple[int, ...], places: int, name: str) -> float:
    """Run the body on one image to find errors before the first step; returns its multiply-adds.

    It must return (1, *logits), followed by `places` axes.
    """
    axes = 1 + len(logits) + places
    shapes = ", ".join(str(tuple(feature.shape[1:])) for feature in features)
    try:
        with counting() as counted:
            out = frozen_copy(body)(*features)
    except (RuntimeError, TypeError) as error:
        raise ModebridgeError(
            f"Expected the body of '{name}' to take features of {shapes}, but got '{first_line(error)}'; "
            "adapt it to the tap."
        ) from error
    expected = ", ".join(map(str, ("batch", *logits, *["places"] * places)))
    if not isinstance(out, Tensor) or out.shape[: len(logits) + 1] != (1, *logits) or out.dim() != axes:
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ModebridgeError(
            f"Expected the body of '{name}' to return logits of ({expected}), but got {got}; adapt its last layer."
        )
    return counted()
