"""Permute the units of one network to match another, verify that the function is unchanged, and measure the effect."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from modebridge.alignment.groups import Groups, Permutations, Spec, from_spec
from modebridge.alignment.proof import prove, sample
from modebridge.alignment.similarity import assign, correlations, cosines, match_by_weights
from modebridge.alignment.trace import trace
from modebridge.batches import check_batch, map_inputs
from modebridge.curves import Curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes, to_modes
from modebridge.nets import frozen_copy
from modebridge.scoring.profile import barrier, curve_profile
from modebridge.types import Batch, Batches, Inputs

By: TypeAlias = Literal["activations", "weights"]


@dataclass(frozen=True)
class Match:
    """How well a group of units matches: the mean similarity of matched units before and after, and how many moved.

    Pairs of units that are constant over all images are left out of the means; NaN if there are no others.
    """

    name: str
    size: int
    before: float
    after: float
    moved: int


@dataclass(frozen=True)
class Alignment:
    """A mode permuted to match another, with the check and the measurements.

    Args:
        mode: the same function as before, with its units in the order of the reference's.
        by: "activations" or "weights".
        difference: largest difference between the network's outputs before and after on several batches, relative to
            the largest value, in float64. It verifies that the function is unchanged.
        barrier_before: rise of the NLL on the straight line between the modes; None if not measured.
        barrier_after: the barrier after aligning.
        matches: mean correlation (or cosine) of matched units before and after, per group of units.
        permutations: permutations by group.
        groups: the groups of units that can be permuted.
    """

    mode: Mode
    by: By
    difference: float
    barrier_before: float | None
    barrier_after: float | None
    matches: tuple[Match, ...] = field(repr=False)
    permutations: Permutations = field(repr=False)
    groups: Groups = field(repr=False)

    @property
    def stopped(self) -> tuple[tuple[str, str], ...]:
        """What kept units in place (operations, unused weights, outputs other than the logits), and where."""
        return self.groups.stopped

    @property
    def quality_before(self) -> float:
        """Mean similarity of units at the same index, over all units, before aligning."""
        return self._mean("before")

    @property
    def quality_after(self) -> float:
        """Mean similarity of units at the same index, over all units, after aligning."""
        return self._mean("after")

    def _mean(self, when: Literal["before", "after"]) -> float:
        values = [(float(getattr(match, when)), match.size) for match in self.matches]
        known = [(value, size) for value, size in values if not math.isnan(value)]
        return sum(value * size for value, size in known) / max(sum(size for _, size in known), 1)

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


def find_groups(net: nn.Module, inputs: Inputs | Sequence[Inputs]) -> Groups:
    """Find the units of a network that can be permuted, by tracing forward passes.

    Args:
        net: any module that maps inputs to logits; it is copied.
        inputs: a small batch, or several: the path through the network may depend on the images.
    """
    batches = [inputs] if isinstance(inputs, Tensor | Mapping) else list(inputs)
    # Repeat a single image: axes of size 1 cannot be tracked.
    groups = trace(net, [map_inputs(lambda t: t if len(t) > 1 else t[[0, 0]], batch) for batch in batches])
    if not groups.groups:
        reasons = ", ".join(f"{name} in '{where}'" for name, where in groups.stopped)
        raise ModebridgeError(
            f"Expected {type(net).__name__} to have units that can be permuted, but found none"
            + (f": {reasons} keep them in place; pass a spec." if reasons else "; there is nothing to align.")
        )
    return groups


def align(
    net: nn.Module,
    a: Mode,
    b: Mode,
    data: Batches,
    *,
    by: By = "activations",
    spec: Spec | None = None,
    images: int = 10_000,
    barrier_images: int = 1_000,
    device: torch.device | str = "auto",
    progress: bool | None = None,
) -> Alignment:
    """Permute the units of `b` to match those of `a`: the same function, closer in parameter space.

    The units that can be permuted are found by tracing forward passes of several batches, so it works for any network.
    The result is always compared with the original, and an error is raised if it is not the same function. The data
    are read at most twice: a few batches, and `images` images for activations.

    Args:
        net: the network of both modes.
        a: the reference.
        b: the mode to permute.
        data: yields (images, labels) to trace, compare activations and measure barriers on; use training data.
        by: "activations" (correlation, as in the paper) or "weights" (coordinate descent over groups).
        spec: groups specified by hand, {"layer.weight": ("group", None), ...}, if they cannot be found.
        images: number of images for activations.
        barrier_images: number of images, held in memory, to measure the barrier on the straight line before and after
            (five points each, with batch norm's statistics re-estimated at each); 0 measures none.
        device: where to run; "auto" is the device of `a`.
        progress: show a progress bar; None shows it in terminals.

    Returns:
        The aligned mode, on the device of `b`, with the check and the measurements.
    """
    a, b = to_modes(net, [a, b])
    check_modes(net, [a, b], 2, "an alignment")
    if by not in ("activations", "weights"):
        raise ModebridgeError(f"Expected by to be 'activations' or 'weights', but got '{by}'; choose one of the two.")
    if spec is not None and by == "activations":
        raise ModebridgeError(
            "Expected by='weights' with a spec, but got 'activations'; finding activations of units needs tracing."
        )
    if device == "auto":
        device = next((tensor.device for tensor in a.params.values()), torch.device("cpu"))
    hidden = None if progress is None else not progress
    looked, kept = sample(data, barrier_images)
    bare, mine, theirs = frozen_copy(net).to(device), a.to(device), b.to(device)
    few = [map_inputs(lambda tensor: tensor.to(device), inputs) for inputs in looked]
    groups = find_groups(mine.load(bare), few) if spec is None else from_spec(spec, a.state)
    identity = groups.identity()
    if by == "weights":
        permutations = match_by_weights(groups, mine.params, theirs.params)
        before = cosines(groups, mine.params, theirs.params)
        after = cosines(groups, mine.params, groups.permute(theirs.params, permutations))
    else:
        with tqdm(total=images, desc="activations", unit="img", disable=hidden) as bar:
            found = correlations(groups, mine.load(bare), theirs.load(bare), _fed(data, device), images, bar.update)
        permutations = identity | {number: assign(table) for number, table in found.similarity().items()}
        before, after = found.quality(identity), found.quality(permutations)
        groups = replace(groups, stopped=(*groups.stopped, *found.stopped))
    matches = tuple(
        Match(group.name, group.size, before[k], after[k], int((permutations[k] != identity[k]).sum()))
        for k, group in enumerate(groups.groups)
        if k in before
    )
    # Permute the original tensors, so that they stay on their device.
    params, buffers = (groups.permute(tree, permutations) for tree in (b.params, b.buffers))
    aligned = replace(b, params=params, buffers=buffers)
    difference = prove(bare, theirs, aligned.to(device), few)
    first = last = None
    if kept:
        batches = list(_fed(kept, device))
        straight, nearer = (Curve.line(mine, end.to(device), 0) for end in (b, aligned))
        # The permuted end is the same function, so only the points between differ.
        places = [(straight, r) for r in (0.0, 0.25, 0.5, 0.75, 1.0)] + [(nearer, r) for r in (0.25, 0.5, 0.75)]
        points = [
            point
            for line, r in tqdm(places, desc="barriers", disable=hidden)
            for point in curve_profile(bare, line, batches, [r], batches)
        ]
        first, last = barrier(points[:5]), barrier([points[0], *points[5:], points[4]])
    return Alignment(aligned, by, difference, first, last, matches, permutations, groups)


def _fed(data: Batches, device: torch.device | str) -> Iterator[Batch]:
    """Batches, checked and moved to a device as they are drawn."""
    for item in data:
        inputs, labels = check_batch(item, "data")
        yield map_inputs(lambda tensor: tensor.to(device), inputs), labels.to(device)
