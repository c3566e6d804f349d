"""Targets of a bridge: the curve at r as in the paper, other predictions, or several with one head each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from modebridge.curves import Curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode

__all__ = [
    "Target",
    "curve_target",
    "ensemble_target",
    "heads_target",
    "label_target",
    "mode_target",
    "with_labels",
]


@dataclass(frozen=True)
class Target:
    """The mean probability of some frozen networks; without networks, the labels.

    Args:
        modes: the networks to run.
        r: position on a curve, if the target is one.
        what: description for tables.
        label_share: weight of the labels in the target.
        parts: the target of each head, if there are several.
    """

    modes: tuple[Mode, ...]
    r: float | None
    what: str
    label_share: float = 0.0
    parts: tuple[Target, ...] = ()

    @property
    def heads(self) -> int:
        """Number of heads of the bridge."""
        return len(self.parts) or 1


def curve_target(curve: Curve, r: float = 0.5) -> Target:
    """The network on the curve at r: the paper's target."""
    return Target((curve.at(r),), r, f"the curve at r = {r:g}")


def mode_target(mode: Mode) -> Target:
    """Another mode, to test whether a bridge needs a curve."""
    return Target((mode,), None, "another mode")


def ensemble_target(modes: Sequence[Mode]) -> Target:
    """The mean probability of several modes: plain distillation of a deep ensemble."""
    if not modes:
        raise ModebridgeError("Expected an ensemble as target to have modes, but got none; pass at least one.")
    return Target(tuple(modes), None, f"the mean of {len(modes)} modes")


def label_target() -> Target:
    """The (mixed) labels: the control without a second network."""
    return Target((), None, "the labels", label_share=1.0)


def with_labels(target: Target, share: float) -> Target:
    """A mix of a target and the labels, with the gradient of (1 - share) * KL to the target + share * cross entropy."""
    if not 0 <= share <= 1:
        raise ModebridgeError(f"Expected the labels' share to be in [0, 1], but got {share}; 0 omits them.")
    _check_plain([target], "labels beside a target")
    return replace(target, label_share=share, what=f"{target.what} and {share:.0%} labels")


def heads_target(targets: Sequence[Target]) -> Target:
    """One head per target on a shared trunk: each head is a member of the mean, and the losses are summed."""
    if not targets:
        raise ModebridgeError("Expected a bridge to have at least one head, but got no target; pass one per head.")
    _check_plain(targets, "heads")
    modes = tuple({mode.id: mode for target in targets for mode in target.modes}.values())
    what = "; ".join(target.what for target in targets)
    return targets[0] if len(targets) == 1 else Target(modes, None, what, parts=tuple(targets))


def _check_plain(targets: Sequence[Target], what: str) -> None:
    for target in targets:
        if target.parts:
            raise ModebridgeError(
                f"Expected {what} to consist of plain targets, but got '{target.what}'; use curve_target, "
                "mode_target, ensemble_target or label_target."
            )
