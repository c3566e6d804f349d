"""A file against the library: what both say about the same images, in every way the file can be asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from modebridge.deploy.answer import ALL
from modebridge.deploy.temperatures import Temperatures
from modebridge.ensembles import BridgedEnsemble, scale

__all__ = ["Array", "Ask", "expected", "largest_difference", "probe"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Ask: TypeAlias = Callable[[Array, int | None, float | None], Array]
"""From images (B, ...), a number of bridges and a threshold to probabilities (B, K)."""


def probe(example: Tensor, more: Tensor | None = None) -> list[Tensor]:
    """Batches to compare on: the example, the images given, and random ones; several sizes, one among them."""
    generator = torch.Generator().manual_seed(0)
    random = torch.rand(7, *example.shape[1:], generator=generator)
    batches = [random, random[:1], example[:64], example[:1]]
    if more is not None and len(more):
        batches += [more[:64], more[64:256], more[:3]]
    return [batch for batch in batches if len(batch)]


def expected(
    members: Tensor,
    bases: int,
    temperatures: Temperatures,
    bridges: int | None = None,
    threshold: float | None = None,
) -> Tensor:
    """What the library says: every member has run, and what an elastic answer would leave out is left out afterwards.

    Args:
        members: (M, B, K) probabilities of `BridgedEnsemble.members`.
        bases: how many of them are bases.
        temperatures: of every number of bridges.
        bridges: how many are asked; None asks all.
        threshold: of the first base's confidence; None asks every member about every image.
    """
    count = len(members) - bases if bridges is None else bridges
    long = scale(members[: bases + count].mean(dim=0), temperatures.by_bridges[count])
    short = scale(members[0], temperatures.first)
    unsure = short.amax(dim=-1) < (ALL if threshold is None else threshold)
    return torch.where(unsure[:, None], long, short)


@torch.no_grad()
def largest_difference(
    ask: Ask, ensemble: BridgedEnsemble, temperatures: Temperatures, batches: Sequence[Tensor], *, elastic: bool
) -> float:
    """The largest difference of a probability over batches and, where the file is elastic, over all ways to ask it."""
    worst, bases = 0.0, len(ensemble.bases)
    for number, images in enumerate(batches):
        members = ensemble.members(images)
        ways: list[tuple[int | None, float | None]] = [(None, None)]
        if elastic:
            ways.append((None, _between(scale(members[0], temperatures.first))))
            # Every number of bridges once; the other batches see them through the full answer.
            ways += [(j, None) for j in range(len(ensemble.bridges))] if number == 0 else []
        for bridges, threshold in ways:
            told = torch.from_numpy(ask(images.numpy(), bridges, threshold))
            worst = _larger(worst, told - expected(members, bases, temperatures, bridges, threshold))
    return worst


def _larger(worst: float, difference: Tensor) -> float:
    """The larger of both; what is not a number is infinitely far."""
    return max(worst, float(difference.abs().nan_to_num(nan=float("inf")).max()))


def _between(first: Tensor) -> float:
    """A threshold in the widest gap of the first base's confidences, so that rounding sends no image the other way."""
    top = first.amax(dim=-1).sort().values
    if len(top) == 1:
        return float(top[0]) / 2
    gap = int(top.diff().argmax())
    return float(top[gap] + top[gap + 1]) / 2
