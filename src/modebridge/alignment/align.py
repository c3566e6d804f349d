"""Renumber the units of one network so that they are those of another, and prove that it is the same function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from modebridge.alignment.by_activations import activation_similarity
from modebridge.alignment.by_weights import match_by_weights, weight_similarity
from modebridge.alignment.groups import Groups, Permutations, groups_of
from modebridge.alignment.matching import Similarity, quality, solve
from modebridge.alignment.spec import Spec, from_spec
from modebridge.alignment.trace import trace
from modebridge.batches import each, first_batch
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes
from modebridge.nets import run, skeleton
from modebridge.types import Batches, Inputs

__all__ = ["By", "Match", "Matched", "align_modes", "find_groups", "prove"]

By: TypeAlias = Literal["activations", "weights"]

TOLERANCE = 1e-6
"""The difference that a proof allows, in units of the largest logit, in float64."""


@dataclass(frozen=True)
class Match:
    """How well a group of units fits: the mean similarity of matched units before and after, and how many moved."""

    name: str
    size: int
    before: float
    after: float
    moved: int


@dataclass(frozen=True)
class Matched:
    """A renumbered mode and how it came about.

    Args:
        mode: the same function, its units in the order of the reference's.
        permutations: by group.
        groups: what could be renumbered.
        matches: the quality of each group.
        by: "activations" (correlations) or "weights" (cosines).
        difference: the largest difference of a logit, relative to the largest logit, in float64.
    """

    mode: Mode
    permutations: Permutations
    groups: Groups
    matches: tuple[Match, ...]
    by: By
    difference: float


def find_groups(net: nn.Module, inputs: Inputs) -> Groups:
    """The units of a network that can be renumbered, by watching one forward pass.

    Args:
        net: any module that maps inputs to logits; it is copied.
        inputs: a small batch.
    """
    # Two images, the same one twice if need be: an axis of size 1 is no axis.
    found = groups_of(trace(net, each(lambda tensor: tensor[[0, -1]], inputs)))
    if not found.groups:
        words = ", ".join(f"{name} in '{where}'" for name, where in found.stopped)
        raise ModebridgeError(
            f"Expected {type(net).__name__} to have units that can be renumbered, but found none"
            + (f": {words} keep them in place; give a spec by hand." if words else "; there is nothing to align.")
        )
    return found


def align_modes(
    net: nn.Module,
    a: Mode,
    b: Mode,
    data: Batches,
    *,
    by: By = "activations",
    spec: Spec | None = None,
    images: int = 10_000,
) -> Matched:
    """Renumber the units of `b` to match those of `a`; refuses where the result is not the same function.

    Args:
        net: the network that both modes fit.
        a: the reference.
        b: the mode to renumber.
        data: yields (images, labels): what activations are compared on, and what the proof runs on.
        by: "activations" as the paper, or "weights", which needs no data but one batch.
        spec: the groups as written by hand, where tracing cannot find them.
        images: how many are looked at for activations.
    """
    check_modes(net, [a, b], 2, "an alignment")
    if by not in ("activations", "weights"):
        raise ModebridgeError(f"Expected by to be 'activations' or 'weights', but got '{by}'; choose one of the two.")
    if spec is not None and by == "activations":
        raise ModebridgeError(
            "Expected by='weights' beside a spec, but got 'activations'; only tracing tells where units can be seen."
        )
    inputs = first_batch(data, "data")[0]
    groups = find_groups(a.load(net), inputs) if spec is None else from_spec(spec, a.state)
    similarity: Similarity
    if by == "weights":
        permutations = match_by_weights(groups, a.params, b.params)
        moved = groups.permute(b.params, permutations)
        before, after = weight_similarity(groups, a.params, b.params), weight_similarity(groups, a.params, moved)
        matches = _matches(groups, permutations, before, after, groups.identity())
    else:
        similarity = activation_similarity(groups, a.load(net), b.load(net), data, images)
        permutations = {key: own for root in groups.roots() for key, own in solve(groups, root, similarity).items()}
        permutations = {**groups.identity(), **permutations}
        matches = _matches(groups, permutations, similarity, similarity, permutations)
    aligned = Mode(groups.permute(b.params, permutations), groups.permute(b.buffers, permutations))
    return Matched(aligned, permutations, groups, matches, by, prove(net, b, aligned, inputs))


@torch.no_grad()
def prove(net: nn.Module, before: Mode, after: Mode, inputs: Inputs) -> float:
    """The difference of two modes' logits relative to the largest, in float64; refuses more than rounding explains."""
    bare = skeleton(net)
    try:
        said = [_logits(bare.double(), mode, inputs) for mode in (before, after)]
        tolerance = TOLERANCE
    except RuntimeError:
        # A network that cannot run in float64: judged by what rounding does in its own type.
        said = [_single(skeleton(net), mode, inputs) for mode in (before, after)]
        tolerance = 1e-4
    scale = float(said[0].abs().max())
    difference = float((said[0] - said[1]).abs().max()) / max(scale, 1e-12)
    if not difference <= tolerance:
        raise ModebridgeError(
            f"Expected the renumbered network to be the same function, but its logits differ by {difference:.1e} of "
            f"the largest (allowed: {tolerance:.0e}); check the spec if you gave one, or leave it as it is."
        )
    return difference


def _logits(net: nn.Module, mode: Mode, inputs: Inputs) -> Tensor:
    def wide(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    state = {name: wide(tensor) for name, tensor in mode.state.items()}
    return run(net, state, {}, each(wide, inputs))


def _single(net: nn.Module, mode: Mode, inputs: Inputs) -> Tensor:
    return run(net, mode.params, mode.buffers, inputs).double()


def _matches(
    groups: Groups, found: Permutations, before: Similarity, after: Similarity, matched: Permutations
) -> tuple[Match, ...]:
    straight = groups.identity()
    matches = []
    for number, group in groups.groups.items():
        old, new = before(group), after(group)
        if old is None or new is None:
            continue
        n = len(groups.flat(number, straight))
        own = groups.flat(number, found)
        matches.append(
            Match(
                group.name,
                n,
                quality(old.reshape(n, n), torch.arange(n)),
                quality(new.reshape(n, n), groups.flat(number, matched)),
                int((own != torch.arange(n)).sum()),
            )
        )
    return tuple(matches)
