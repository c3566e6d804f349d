"""A file against the library: what both say about the same images, in every way the file can be asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.batches import each, size_of, some_of
from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.deploy.elastic_answer import ALL
from modebridge.deploy.inputs import Array, Arrays, arrays_of
from modebridge.deploy.thresholds import gated
from modebridge.ensembles import BridgedEnsemble, Mean, scale
from modebridge.nets.flops import FAILED
from modebridge.types import Inputs

__all__ = ["Ask", "expected", "largest_difference", "probe"]

Ask: TypeAlias = Callable[[Arrays, int | None, float | None], Array]
"""From images (B, ...), a number of bridges and a threshold to probabilities (B, K)."""

MARGIN = 1e-4
"""A confidence as near as this to a threshold may be on either side of it, by rounding."""


def probe(example: Inputs, more: Inputs | None = None, ensemble: BridgedEnsemble | None = None) -> list[Inputs]:
    """Batches to compare on: the example, the images given, and random ones; several sizes, one among them.

    Args:
        example: (B, ...), or several inputs by name.
        more: the images given.
        ensemble: random inputs that it cannot answer (tokens in an order that makes no sense) are left out.
    """
    random = _random(example)
    made_up = [random, some_of(random, slice(1))]
    batches = [batch for batch in made_up if ensemble is None or _answers(ensemble, batch)]
    batches += [some_of(example, slice(64)), some_of(example, slice(1))]
    if more is not None:
        batches += [some_of(more, rows) for rows in (slice(64), slice(64, 256), slice(3))]
    return [batch for batch in batches if size_of(batch)]


def _random(example: Inputs, count: int = 7) -> Inputs:
    """Random floats in [0, 1]; rows of the example for whole numbers, of which nobody knows which others make sense."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(count) % size_of(example)

    def some(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.rand(count, *tensor.shape[1:], generator=generator)
        chosen = tensor[rows]
        # Moved along by another number of places in each row, and by the same in every input: masks stay with tokens.
        return torch.stack([row.roll(k, 0) for k, row in enumerate(chosen)]) if chosen.dim() > 1 else chosen

    return each(some, example)


@torch.no_grad()
def _answers(ensemble: BridgedEnsemble, batch: Inputs) -> bool:
    try:
        return bool(ensemble.members(batch).isfinite().all())
    except FAILED:
        return False


def expected(
    members: Tensor,
    bases: int,
    temperatures: Temperatures,
    bridges: int | None = None,
    threshold: float | None = None,
    mean: Mean = "probability",
) -> Tensor:
    """What the library says: every member has run, and what an elastic answer would leave out is left out afterwards.

    Args:
        members: (M, B, K) probabilities of `BridgedEnsemble.members`.
        bases: how many of them are bases.
        temperatures: of every number of bridges.
        bridges: how many are asked; None asks all.
        threshold: of the first base's confidence; None asks every member about every image.
        mean: how members become one.
    """
    asked = members if bridges is None else members[: bases + temperatures.members(bridges)]
    return gated(asked, bases, temperatures, ALL if threshold is None else threshold, mean)[0]


@torch.no_grad()
def largest_difference(
    ask: Ask,
    ensemble: BridgedEnsemble,
    temperatures: Temperatures,
    batches: Sequence[Inputs],
    *,
    elastic: bool,
    margin: float = MARGIN,
) -> float:
    """The largest difference of a probability over batches and, where the file is elastic, over all ways to ask it.

    An image whose confidence is within `margin` of a threshold may go either way, so its answer may be either of both.
    """
    worst, bases, mean = 0.0, len(ensemble.bases), ensemble.mean
    for number, images in enumerate(batches):
        members = ensemble.members(images)
        ways: list[tuple[int | None, float | None]] = [(None, None)]
        if elastic:
            ways.append((None, _between(scale(members[0], temperatures.first))))
            # Every number of bridges once; the other batches see them through the full answer.
            ways += [(j, None) for j in range(len(ensemble.bridges))] if number == 0 else []
        for bridges, threshold in ways:
            answer = torch.from_numpy(ask(arrays_of(images), bridges, threshold))
            wanted = [expected(members, bases, temperatures, bridges, threshold, mean)]
            if threshold is not None:
                first = scale(members[0], temperatures.first).amax(dim=-1)
                tied = ((first - threshold).abs() <= margin)[:, None]
                other = [expected(members, bases, temperatures, bridges, way, mean) for way in (0.0, None)]
                wanted = [torch.where(tied, either, wanted[0]) for either in other]
            apart = torch.stack([(answer - either).abs().amax(dim=-1) for either in wanted])
            worst = _larger(worst, apart.amin(dim=0))
    return worst


def _larger(worst: float, difference: Tensor) -> float:
    """The larger of both; what is not a number is infinitely far."""
    return max(worst, float(difference.abs().nan_to_num(nan=float("inf")).max()))


def _between(first: Tensor) -> float:
    """A threshold in the widest gap of the first base's confidences, where rounding sends fewest images elsewhere."""
    top = first.amax(dim=-1).sort().values
    if len(top) == 1:
        return float(top[0]) / 2
    gap = int(top.diff().argmax())
    return float(top[gap] + top[gap + 1]) / 2
