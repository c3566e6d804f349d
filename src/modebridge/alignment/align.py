"""Permute the units of one network to match another, and verify that the function is unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.alignment.assignment import Similarity, quality, solve
from modebridge.alignment.by_activations import activation_similarity
from modebridge.alignment.by_weights import match_by_weights, weight_similarity
from modebridge.alignment.groups import Groups, Permutations, groups_of
from modebridge.alignment.proof import prove
from modebridge.alignment.sample import sample
from modebridge.alignment.spec import Spec, from_spec
from modebridge.alignment.trace import trace
from modebridge.batches import check_batch, map_inputs
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes
from modebridge.nets import frozen_copy
from modebridge.types import Batch, Batches, HasDevice, Inputs, Progress

__all__ = ["By", "Fed", "Match", "Matched", "align_modes", "device_for", "find_groups"]

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
class Matched:
    """A permuted mode, with its permutations and their quality.

    Args:
        mode: the same function, with its units in the order of the reference's.
        permutations: permutations by group.
        groups: the groups of units that can be permuted.
        matches: quality of the match per group.
        by: "activations" (correlations) or "weights" (cosines).
        difference: largest difference between the network's outputs on several batches, relative to the largest
            value, in float64.
    """

    mode: Mode
    permutations: Permutations
    groups: Groups
    matches: tuple[Match, ...]
    by: By
    difference: float


def find_groups(net: nn.Module, inputs: Inputs | Sequence[Inputs]) -> Groups:
    """Find the units of a network that can be permuted, by tracing forward passes.

    Args:
        net: any module that maps inputs to logits; it is copied.
        inputs: a small batch, or several: the path through the network may depend on the images.
    """
    batches = [inputs] if isinstance(inputs, Tensor | Mapping) else list(inputs)
    # Repeat a single image: axes of size 1 cannot be tracked.
    groups = groups_of(trace(net, [map_inputs(lambda t: t if len(t) > 1 else t[[0, 0]], batch) for batch in batches]))
    if not groups.groups:
        reasons = ", ".join(f"{name} in '{where}'" for name, where in groups.stopped)
        raise ModebridgeError(
            f"Expected {type(net).__name__} to have units that can be permuted, but found none"
            + (f": {reasons} keep them in place; pass a spec." if reasons else "; there is nothing to align.")
        )
    return groups


def align_modes(
    net: nn.Module,
    a: Mode,
    b: Mode,
    data: Batches,
    *,
    by: By = "activations",
    spec: Spec | None = None,
    images: int = 10_000,
    looked: Sequence[Inputs] | None = None,
    engine: HasDevice | None = None,
    progress: Progress | None = None,
) -> Matched:
    """Permute the units of `b` to match those of `a`; raises an error if the result is not the same function.

    Args:
        net: the network of both modes.
        a: the reference.
        b: the mode to permute.
        data: yields (images, labels) to compare activations on and to verify the result on.
        by: "activations" as in the paper, or "weights", which needs only a few batches.
        spec: groups specified by hand, if tracing cannot find them.
        images: number of images for activations.
        looked: a few images of several batches to find groups and verify on; None reads them from the data.
        engine: defines the device to run on; None uses the device of `a`.
        progress: progress callback, called after every batch.
    """
    check_modes(net, [a, b], 2, "an alignment")
    if by not in ("activations", "weights"):
        raise ModebridgeError(f"Expected by to be 'activations' or 'weights', but got '{by}'; choose one of the two.")
    if spec is not None and by == "activations":
        raise ModebridgeError(
            "Expected by='weights' with a spec, but got 'activations'; finding activations of units needs tracing."
        )
    device = device_for(a, engine)
    bare, mine, theirs = frozen_copy(net).to(device), a.to(device), b.to(device)
    few = [map_inputs(lambda tensor: tensor.to(device), inputs) for inputs in looked or sample(data)[0]]
    groups = find_groups(mine.load(bare), few) if spec is None else from_spec(spec, a.state)
    if by == "weights":
        permutations = match_by_weights(groups, mine.params, theirs.params)
        moved = groups.permute(theirs.params, permutations)
        before, after = (weight_similarity(groups, mine.params, params) for params in (theirs.params, moved))
        matches = _matches(groups, permutations, before, after, groups.identity())
    else:
        similarity = activation_similarity(
            groups, mine.load(bare), theirs.load(bare), Fed(data, device), images, progress
        )
        permutations = groups.identity()
        for root in groups.roots():
            permutations.update(solve(groups, root, similarity))
        matches = _matches(groups, permutations, similarity.plain, similarity.plain, permutations)
        groups = replace(groups, stopped=(*groups.stopped, *similarity.stopped))
    # Permute the original tensors, so that they stay on their device.
    aligned = Mode(groups.permute(b.params, permutations), groups.permute(b.buffers, permutations))
    difference = prove(bare, theirs, aligned.to(device), few, training=groups.training)
    return Matched(aligned, permutations, groups, matches, by, difference)


def device_for(mode: Mode, engine: HasDevice | None) -> torch.device:
    """The device to run on: the engine's, or the mode's."""
    if engine is not None:
        return torch.device(engine.device)
    return next((tensor.device for tensor in mode.params.values()), torch.device("cpu"))


class Fed:
    """Batches that are checked and moved to a device as they are drawn."""

    def __init__(self, data: Batches, device: torch.device) -> None:
        self._data = data
        self._device = device

    def __iter__(self) -> Iterator[Batch]:
        for item in self._data:
            inputs, labels = check_batch(item, "data")
            yield map_inputs(lambda tensor: tensor.to(self._device), inputs), labels.to(self._device)


def _matches(
    groups: Groups, permutations: Permutations, before: Similarity, after: Similarity, matched: Permutations
) -> tuple[Match, ...]:
    identity = groups.identity()
    matches = []
    for number, group in groups.groups.items():
        old, new = before(group), after(group)
        if old is None or new is None:
            continue
        n = len(groups.flat(number, identity))
        permutation = groups.flat(number, permutations)
        matches.append(
            Match(
                group.name,
                n,
                quality(old.reshape(n, n), torch.arange(n)),
                quality(new.reshape(n, n), groups.flat(number, matched)),
                int((permutation != torch.arange(n)).sum()),
            )
        )
    return tuple(matches)
