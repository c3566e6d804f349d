"""The prediction of an ensemble for a batch, and elastic prediction: each image runs only the members it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from modebridge.batches import take_rows
from modebridge.deploy.bridge_temperatures import Temperatures
from modebridge.ensembles import Mean, average, probabilities_of, scale
from modebridge.ensembles.temperature import FLOOR
from modebridge.scoring.cascade import ALL
from modebridge.types import Inputs

__all__ = ["ALL", "Answer", "Place", "heads_of", "staged", "uncertainty"]

Place: TypeAlias = tuple[int, str]
"""A base by number, and one of its taps."""

T = TypeVar("T")


class Answer(NamedTuple, Generic[T]):
    """The prediction of an ensemble for a batch.

    Args:
        probabilities: (B, K), calibrated.
        members: (B, M, K) probabilities of each member before calibration; zeros where a member did not run. None if
            the file does not output them.
        entropy: (B,) entropy of the calibrated probabilities, in nats; None if the file does not output it.
        mutual_information: (B,) disagreement of the members: the entropy of their mean minus the mean of their
            entropies, before calibration, in nats; None if the file does not output it.
        used: (B,) number of members averaged for each image; every head of a bridge counts as one.
    """

    probabilities: T
    members: T | None
    entropy: T | None
    mutual_information: T | None
    used: T


def staged(
    images: Inputs,
    base: Callable[[int, Inputs], Sequence[Tensor]],
    bridges: Callable[[Mapping[Place, Tensor]], Sequence[Tensor]],
    *,
    taps: Sequence[Sequence[str]],
    members: int,
    temperatures: Temperatures,
    count: int,
    threshold: float | None,
    mean: Mean = "probability",
) -> Answer[Tensor]:
    """Run the first base on all images, and the other members only on images it is unsure of.

    Args:
        images: (B, ...), at least one; or several inputs by name.
        base: maps the number of a base and images to its logits and the features at its taps.
        bridges: maps features to the logits of the bridges to run, (B, K) or (B, h, K) each.
        taps: taps of every base.
        members: total number of members.
        temperatures: temperature per number of bridges.
        count: number of bridges to run.
        threshold: images whose first base is at least this confident, after its own temperature, use only that base;
            None runs every member on every image.
        mean: how members are averaged.
    """
    logits, *at_taps = base(0, images)
    first = probabilities_of(logits)
    answer = scale(first, temperatures.first)
    table = first.new_zeros(members, *first.shape)
    table[0] = first
    used = torch.ones(len(first), dtype=torch.int64, device=first.device)
    unsure = (answer.amax(dim=-1) < (ALL if threshold is None else threshold)).nonzero()[:, 0]
    if len(unsure):
        features: dict[Place, Tensor] = {
            (0, tap): feature[unsure] for tap, feature in zip(taps[0], at_taps, strict=True)
        }
        ran = [first[unsure]]
        for k in range(1, len(taps)):
            logits, *at_taps = base(k, take_rows(images, unsure))
            features |= {(k, tap): feature for tap, feature in zip(taps[k], at_taps, strict=True)}
            ran.append(probabilities_of(logits))
        ran += [probabilities_of(head) for logits in bridges(features) for head in heads_of(logits)]
        probabilities = torch.stack(ran)
        answer[unsure] = scale(average(probabilities, mean), temperatures.by_bridges[count])
        table[: len(ran), unsure] = probabilities
        used[unsure] = len(ran)
    return Answer(answer, table.transpose(0, 1), *uncertainty(answer, table, used), used)


def heads_of(logits: Tensor) -> list[Tensor]:
    """The logits (B, K) of each head, from the output of a bridge, (B, K) or (B, h, K)."""
    return [logits] if logits.dim() == 2 else list(logits.unbind(dim=1))


def uncertainty(probabilities: Tensor, members: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """The entropy (B,) of an answer and the mutual information (B,) of the members (M, B, K) behind it."""
    mean = members.sum(dim=0) / used[:, None]
    # A member that did not run has zeros, whose entropy is zero.
    return _entropy(probabilities), _entropy(mean) - _entropy(members).sum(dim=0) / used


def _entropy(table: Tensor) -> Tensor:
    return -(table * (table + FLOOR).log()).sum(dim=-1)
