"""What a bridge learns to say: the curve at r as in the paper, or one of three controls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modebridge.curves import Curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode

__all__ = ["Target", "curve_target", "ensemble_target", "label_target", "mode_target"]


@dataclass(frozen=True)
class Target:
    """The mean probability of some frozen networks; of none, the labels themselves.

    Args:
        modes: the networks to run.
        r: the position on a curve, where there is one.
        what: in words, for tables.
    """

    modes: tuple[Mode, ...]
    r: float | None
    what: str


def curve_target(curve: Curve, r: float = 0.5) -> Target:
    """The network on the curve at r: the paper's target."""
    return Target((curve.at(r),), r, f"the curve at r = {r:g}")


def mode_target(mode: Mode) -> Target:
    """Another mode: does a bridge need a curve at all?"""
    return Target((mode,), None, "another mode")


def ensemble_target(modes: Sequence[Mode]) -> Target:
    """The mean probability of several modes: plain distillation of a deep ensemble."""
    if not modes:
        raise ModebridgeError("Expected an ensemble as target to have modes, but got none; give at least one.")
    return Target(tuple(modes), None, f"the mean of {len(modes)} modes")


def label_target() -> Target:
    """The (mixed-up) labels: the control that uses no second network."""
    return Target((), None, "the labels")
