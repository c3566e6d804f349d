"""Align two modes, and say what it brought: how well units match, and the barrier between the modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from modebridge.alignment import By, Match, Matched, Spec, align_modes
from modebridge.curves import BezierCurve
from modebridge.evaluate.profile import barrier, curve_profile
from modebridge.modes import Mode
from modebridge.types import Batches

__all__ = ["Alignment", "align"]


@dataclass(frozen=True)
class Alignment:
    """A mode renumbered to match another, with the proof and the figures.

    Args:
        mode: the same function as before, its units in the order of the reference's.
        by: "activations" or "weights".
        matches: of every group of units: the mean correlation (or cosine) of matched units before and after.
        difference: of the logits before and after, relative to the largest, in float64: the proof.
        barrier_before: how far the NLL rises on the straight line between the modes; None where not asked for.
        barrier_after: the same after aligning.
        stopped: operations that kept units in place, and where.
        matched: everything else: groups and permutations.
    """

    mode: Mode
    by: By
    matches: tuple[Match, ...]
    difference: float
    barrier_before: float | None
    barrier_after: float | None
    stopped: tuple[tuple[str, str], ...]
    matched: Matched

    @property
    def quality_before(self) -> float:
        """The mean similarity of units at the same place, over all units, before."""
        return _mean([match.before for match in self.matches], self.matches)

    @property
    def quality_after(self) -> float:
        """The same after aligning."""
        return _mean([match.after for match in self.matches], self.matches)

    def __str__(self) -> str:
        measure = "correlation" if self.by == "activations" else "cosine of weights"
        lines = [
            f"Aligned {sum(match.size for match in self.matches)} units in {len(self.matches)} groups by {self.by}: "
            f"mean {measure} {self.quality_before:.3f} -> {self.quality_after:.3f}; "
            f"the same function to {self.difference:.1e}."
        ]
        if self.barrier_before is not None and self.barrier_after is not None:
            lines.append(f"Barrier on the straight line (NLL): {self.barrier_before:.3f} -> {self.barrier_after:.3f}.")
        if self.stopped:
            places = ", ".join(f"{name} in '{where}'" for name, where in self.stopped[:3])
            more = f" and {len(self.stopped) - 3} more" if len(self.stopped) > 3 else ""
            lines.append(f"Units that stay where they are because of {places}{more}.")
        return "\n".join(lines)


def align(
    net: nn.Module,
    a: Mode,
    b: Mode,
    data: Batches,
    *,
    by: By = "activations",
    spec: Spec | None = None,
    images: int = 10_000,
    barriers: bool = True,
) -> Alignment:
    """Renumber the units of `b` to match those of `a`: the same function, nearer in parameter space.

    Which units can be renumbered is found by watching one forward pass, so it works for any network; the result is run
    against the original every time, and refused where it is not the same function.

    Args:
        net: the network that both modes fit.
        a: the reference.
        b: the mode to renumber.
        data: yields (images, labels): what activations are compared on and barriers measured on; training data.
        by: "activations" (correlation, as the paper) or "weights" (coordinate descent over groups).
        spec: the groups as written by hand, {"layer.weight": ("group", None), ...}, where they cannot be found.
        images: how many are looked at for activations.
        barriers: whether to measure the barrier on the straight line before and after (five points each, and batch
            norm's statistics at each).
    """
    matched = align_modes(net, a, b, data, by=by, spec=spec, images=images)
    before, after = (_barrier(net, a, end, data) if barriers else None for end in (b, matched.mode))
    return Alignment(
        matched.mode, by, matched.matches, matched.difference, before, after, matched.groups.stopped, matched
    )


def _barrier(net: nn.Module, a: Mode, b: Mode, data: Batches) -> float:
    return barrier(curve_profile(net, BezierCurve.line(a, b, 0), data, 5, data))


def _mean(values: Sequence[float], matches: Sequence[Match]) -> float:
    total = sum(match.size for match in matches)
    return sum(value * match.size for value, match in zip(values, matches, strict=True)) / max(total, 1)
