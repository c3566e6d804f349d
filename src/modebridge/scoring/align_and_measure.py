"""Align two modes, and measure the effect: how well units match, and the barrier between the modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from modebridge.alignment import By, Fed, Match, Matched, Spec, align_modes, device_for, sample
from modebridge.curves import BezierCurve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import frozen_copy
from modebridge.progress import shows_progress
from modebridge.scoring.profile import CurvePoint, barrier, curve_profile
from modebridge.types import Batches, HasDevice, Progress

__all__ = ["Alignment", "align"]


@dataclass(frozen=True)
class Alignment:
    """A mode permuted to match another, with the check and the measurements.

    Args:
        mode: the same function as before, with its units in the order of the reference's.
        by: "activations" or "weights".
        matches: mean correlation (or cosine) of matched units before and after, per group of units.
        difference: largest difference between the network's outputs before and after on several batches, relative to
            the largest value, in float64. It verifies that the function is unchanged.
        barrier_before: rise of the NLL on the straight line between the modes; None if not measured.
        barrier_after: the barrier after aligning.
        stopped: what kept units in place (operations, unused weights, outputs other than the logits), and where.
        matched: groups and permutations.
    """

    mode: Mode
    by: By
    matches: tuple[Match, ...] = field(repr=False)
    difference: float
    barrier_before: float | None
    barrier_after: float | None
    stopped: tuple[tuple[str, str], ...] = field(repr=False)
    matched: Matched = field(repr=False)

    @property
    def quality_before(self) -> float:
        """Mean similarity of units at the same index, over all units, before aligning."""
        return _mean([match.before for match in self.matches], self.matches)

    @property
    def quality_after(self) -> float:
        """Mean similarity of units at the same index, over all units, after aligning."""
        return _mean([match.after for match in self.matches], self.matches)

    def __str__(self) -> str:
        measure = "correlation" if self.by == "activations" else "cosine of weights"
        lines = [
            f"Aligned {sum(match.size for match in self.matches)} units in {len(self.matches)} groups by {self.by}: "
            f"mean {measure} {self.quality_before:.3f} -> {self.quality_after:.3f}; "
            f"outputs are unchanged to {self.difference:.1e}."
        ]
        if self.barrier_before is not None and self.barrier_after is not None:
            lines.append(f"Barrier on the straight line (NLL): {self.barrier_before:.3f} -> {self.barrier_after:.3f}.")
        if self.stopped:
            places = ", ".join(f"{name} in '{where}'" for name, where in self.stopped[:3])
            more = f" and {len(self.stopped) - 3} more" if len(self.stopped) > 3 else ""
            lines.append(f"Some units stay in place because of {places}{more}.")
        return "\n".join(lines)


@shows_progress("align")
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
    barrier_images: int = 1_000,
    engine: HasDevice | None = None,
    progress: bool | Progress | None = None,
) -> Alignment:
    """Permute the units of `b` to match those of `a`: the same function, closer in parameter space.

    The units that can be permuted are found by tracing forward passes of several batches, so it works for any network.
    The result is always compared with the original, and an error is raised if it is not the same function. The data
    are read at most twice: a few batches, and `images` images for activations.

    Args:
        net: the network of both modes.
        a: the reference.
        b: the mode to permute.
        data: yields (images, labels) to compare activations and measure barriers on; use training data.
        by: "activations" (correlation, as in the paper) or "weights" (coordinate descent over groups).
        spec: groups specified by hand, {"layer.weight": ("group", None), ...}, if they cannot be found.
        images: number of images for activations.
        barriers: whether to measure the barrier on the straight line before and after (five points each, with batch
            norm's statistics re-estimated at each).
        barrier_images: number of images for barriers; they are held in memory.
        engine: `mb.Engine`, or anything with a `device`, to run on; None uses the device of `a`.
        progress: show a progress bar; None shows it in terminals and notebooks. A function is called instead:
            "activations" counts images, "barriers" networks.

    Returns:
        The aligned mode, on the device of `b`, with the check and the measurements.
    """
    assert callable(progress)
    if barriers and barrier_images < 1:
        raise ModebridgeError(
            f"Expected barrier_images to be at least 1, but got {barrier_images}; set barriers=False to measure none."
        )
    looked, held = sample(data, barrier_images if barriers else 0)
    matched = align_modes(
        net, a, b, data, by=by, spec=spec, images=images, looked=looked, engine=engine, progress=progress
    )
    before = after = None
    if barriers:
        device = device_for(a, engine)
        placed, batches = frozen_copy(net).to(device), Fed(held, device)
        start = a.to(device)
        old, new = (BezierCurve.line(start, end.to(device), 0) for end in (b, matched.mode))
        # The permuted end is the same function, so only the points between differ.
        places = [(old, r) for r in (0.0, 0.25, 0.5, 0.75, 1.0)] + [(new, r) for r in (0.25, 0.5, 0.75)]
        points: list[CurvePoint] = []
        for line, r in places:
            points += curve_profile(placed, line, batches, [r], batches)
            progress("barriers", len(points), len(places), 0.0)
        before, after = barrier(points[:5]), barrier([points[0], *points[5:], points[4]])
    return Alignment(
        matched.mode, by, matched.matches, matched.difference, before, after, matched.groups.stopped, matched
    )


def _mean(values: Sequence[float], matches: Sequence[Match]) -> float:
    known = [(value, match.size) for value, match in zip(values, matches, strict=True) if not math.isnan(value)]
    return sum(value * size for value, size in known) / max(sum(size for _, size in known), 1)
