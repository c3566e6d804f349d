"""The first batches of the data, read once for everything that needs a few images."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

import torch

from modebridge.batches import check_batch, first_batch, flatten, map_inputs, rows_of, unflatten
from modebridge.types import Batch, Batches, Inputs

__all__ = ["sample"]

BATCHES = 8
"""Number of batches: the path through a network may depend on the images."""

IMAGES = 16
"""Number of images per batch."""


def sample(data: Batches, hold: int = 0) -> tuple[list[Inputs], list[Batch]]:
    """Read the first batches: 8 of them, and more if `hold` images need more.

    Args:
        data: yields (images, labels).
        hold: number of images to hold with their labels.

    Returns:
        Up to 16 images from each of the first 8 batches; and the first `hold` images with their labels, in their
        original batches.

    >>> looked, held = sample([(torch.zeros(40, 3), torch.zeros(40).long())], hold=30)
    >>> looked[0].shape, held[0][1].shape
    (torch.Size([16, 3]), torch.Size([30]))
    """
    if isinstance(data, Iterator):
        first_batch(data, "data")
    looked: list[Inputs] = []
    held: list[Batch] = []
    count = 0
    for item in data:
        batch = check_batch(item, "data")
        size = len(batch[1])
        if len(looked) < BATCHES and size:
            rows = torch.linspace(0, size - 1, min(size, IMAGES)).round().long().tolist()
            looked.append(map_inputs(itemgetter(rows), batch[0]))
        if count < hold and size:
            held.append(rows_of(batch, slice(0, hold - count)))
            count += len(held[-1][1])
        if len(looked) >= BATCHES and count >= hold:
            break
    if not looked:
        first_batch([], "data")
    return looked, _without_lone_images(held)


def _without_lone_images(batches: list[Batch]) -> list[Batch]:
    """Join a batch of one image to its neighbour: batch norm cannot estimate a variance from one image."""
    joined: list[Batch] = []
    for batch in batches:
        joined[-1:] = [*joined[-1:], batch] if not joined or len(joined[-1][1]) > 1 else _join(joined[-1], batch)
    if len(joined) > 1 and len(joined[-1][1]) == 1:
        joined[-2:] = _join(joined[-1], joined[-2])
    return joined


def _join(lone: Batch, other: Batch) -> list[Batch]:
    """Both as one batch, or only the other one if the shapes of their images differ."""
    image, inputs = flatten(lone[0]), flatten(other[0])
    if {name: t.shape[1:] for name, t in image.items()} != {name: t.shape[1:] for name, t in inputs.items()}:
        return [other]
    joined = {name: torch.cat([tensor, image[name]]) for name, tensor in inputs.items()}
    return [(unflatten(joined), torch.cat([other[1], lone[1]]))]
