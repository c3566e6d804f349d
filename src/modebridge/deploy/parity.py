"""Compare an exported file with the library on the same images, in every way the file can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.batches import map_inputs, size_of, take_rows
from modebridge.deploy.inputs import Array
from modebridge.deploy.module import Temperatures
from modebridge.ensembles import Ensemble, average, cascaded, scale
from modebridge.nets.flops import FAILED
from modebridge.scoring import ALL
from modebridge.types import Inputs

__all__ = ["Ask", "expected", "largest_difference", "probe"]

Ask: TypeAlias = Callable[[Inputs, int | None, float | None], Array]
"""Maps images (B, ...), a number of bridges and a threshold to probabilities (B, K)."""

MARGIN = 1e-4
"""A confidence this close to a threshold may be on either side of it, due to rounding."""


def probe(example: Inputs, ensemble: Ensemble) -> list[Inputs]:
    """Batches to compare on: rows of the example and random ones, in several sizes including one.

    Args:
        example: (B, ...), or several inputs by name.
        ensemble: random inputs on which it fails (such as meaningless sequences of tokens) are left out.
    """
    random = _random(example)
    batches = [batch for batch in (random, take_rows(random, slice(1))) if _runs(ensemble, batch)]
    batches += [take_rows(example, rows) for rows in (slice(64), slice(1), slice(64, 256))]
    return [batch for batch in batches if size_of(batch)]


def _random(example: Inputs, count: int = 7) -> Inputs:
    """Random floats in [0, 1]; for integers, shifted rows of the example, since other values may not be valid."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(count) % size_of(example)

    def some(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.rand(count, *tensor.shape[1:], generator=generator)
        chosen = tensor[rows]
        # Each row is rolled by a different amount, the same in every input, so that masks stay with their tokens.
        return torch.stack([row.roll(k, 0) for k, row in enumerate(chosen)]) if chosen.dim() > 1 else chosen

    return map_inputs(some, example)


@torch.no_grad()
def _runs(ensemble: Ensemble, batch: Inputs) -> bool:
    try:
        return bool(ensemble.members(batch).isfinite().all())
    except FAILED:
        return False


def expected(
    members: Tensor, heads: Sequence[int], temperatures: Temperatures, bridges: int, threshold: float = ALL
) -> Tensor:
    """The prediction of the library: every member has run, and those that a file would skip are dropped.

    Args:
        members: (M, B, K) probabilities of `Ensemble.members`.
        heads: number of heads of each bridge.
        temperatures: temperature per number of bridges.
        bridges: number of bridges to use.
        threshold: confidence threshold of the first base.
    """
    kept = members[: len(members) - sum(heads[bridges:])]
    long = scale(average(kept), temperatures.by_bridges[bridges])
    return cascaded(scale(members[0], temperatures.first), long, threshold)[0]


@torch.no_grad()
def largest_difference(
    ask: Ask,
    ensemble: Ensemble,
    temperatures: Temperatures,
    batches: Sequence[Inputs],
    *,
    cascade: bool,
    margin: float = MARGIN,
) -> float:
    """The largest difference of a probability over all batches and, with a cascade, over all ways to run it.

    An image whose confidence is within `margin` of a threshold may go either way, so both predictions are accepted.
    """
    worst, heads = 0.0, [bridge.heads for bridge, _ in ensemble.reads]
    for number, images in enumerate(batches):
        members = ensemble.members(images)
        sure = scale(members[0], temperatures.first).amax(dim=-1)
        ways: list[tuple[int | None, float | None]] = [(None, None)]
        if cascade:
            ways.append((None, _between(sure)))
            # Every number of bridges, on the first batch only; the full ensemble covers them on the others.
            ways += [(j, None) for j in range(len(heads))] if number == 0 else []
        for bridges, threshold in ways:
            output = torch.from_numpy(ask(images, bridges, threshold))
            count = len(heads) if bridges is None else bridges
            limit = ALL if threshold is None else threshold
            wanted = expected(members, heads, temperatures, count, limit)
            tied = ((sure - limit).abs() <= margin)[:, None]
            either = [
                torch.where(tied, expected(members, heads, temperatures, count, way), wanted) for way in (0.0, ALL)
            ]
            differences = torch.stack([(output - one).abs().amax(dim=-1) for one in either])
            # NaN counts as infinity.
            worst = max(worst, float(differences.amin(dim=0).nan_to_num(nan=float("inf")).max()))
    return worst


def _between(confidences: Tensor) -> float:
    """A threshold in the widest gap between confidences of the first base, where rounding matters least."""
    top = confidences.sort().values
    if len(top) == 1:
        return float(top[0]) / 2
    gap = int(top.diff().argmax())
    return float(top[gap] + top[gap + 1]) / 2
