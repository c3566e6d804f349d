"""Data sets as tensors (images and labels), and batches of them, augmented as a whole on any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from modebridge import seeds
from modebridge.errors import ModebridgeError

__all__ = ["ImageSet", "Loader", "crop_and_flip"]


@dataclass(frozen=True)
class ImageSet:
    """Images and labels that fit in memory.

    Args:
        images: (N, C, H, W), uint8 or floats.
        labels: (N,) int64.
        classes: number of classes K.
    """

    images: Tensor
    labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ModebridgeError(
                f"Expected as many labels as images, but got {len(self.labels)} for {len(self.images)}; "
                "pass one label per image."
            )
        if len(self.images) == 0:
            raise ModebridgeError("Expected a data set to have images, but got none; check the split.")
        if self.images.is_floating_point() and not bool(torch.isfinite(self.images).all()):
            raise ModebridgeError("Expected images to be finite, but got NaN or Inf; clean the data first.")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= self.classes:
            raise ModebridgeError(
                f"Expected labels to be in [0, {self.classes}), but got {low} to {high}; check the number of classes."
            )

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, stop: int) -> ImageSet:
        """The images from `start` up to `stop`, in the stored order."""
        return ImageSet(self.images[start:stop], self.labels[start:stop], self.classes)

    def pick(self, numbers: Tensor) -> ImageSet:
        """The images with the given numbers, in their order."""
        where = numbers.to(self.labels.device)
        return ImageSet(self.images[where], self.labels[where], self.classes)

    def shuffled(self, seed: int) -> ImageSet:
        """The same images in a fixed random order, for sets that are stored by class."""
        return self.pick(torch.randperm(len(self), generator=seeds.generator(seed, "order")))

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set on another device."""
        return ImageSet(self.images.to(device), self.labels.to(device), self.classes)


class Loader:
    """Batches of an image set, augmented a batch at a time; the same seed and epoch give the same batches.

    Each iteration is one epoch and moves on to the next. `set_epoch` jumps to any epoch, so a run can resume.

    Args:
        data: the images.
        batch_size: images per batch; the last batch of an epoch may be smaller.
        shuffle: whether to use a new order every epoch.
        seed: seed of order and augmentation.
        pad: zero pixels added on each side before a random crop to the original size; 0 for none.
        flip: whether to mirror a random half of the images.

    >>> data = ImageSet(torch.zeros(5, 1, 8, 8), torch.zeros(5, dtype=torch.int64), classes=2)
    >>> [len(labels) for _, labels in Loader(data, batch_size=2)]
    [2, 2, 1]
    """

    def __init__(
        self,
        data: ImageSet,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        pad: int = 0,
        flip: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ModebridgeError(f"Expected batch_size to be at least 1, but got {batch_size}; the paper uses 128.")
        self.data = data
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.pad = pad
        self.flip = flip
        self._epoch = 0

    def __len__(self) -> int:
        return -(-len(self.data) // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self._batches(seeds.generator(self.seed, "epoch", epoch))

    def _batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.data.images, self.data.labels
        count, device = len(self.data), images.device
        # All draws of the epoch at once, on the CPU: equal on every device, and one copy instead of one per batch.
        order = torch.randperm(count, generator=generator) if self.shuffle else torch.arange(count)
        places = torch.randint(2 * self.pad + 1, (2, count), generator=generator) if self.pad or self.flip else None
        mirrored = torch.rand(count, generator=generator) < 0.5 if self.flip else torch.zeros(count, dtype=torch.bool)
        order, mirrored = order.to(device), mirrored.to(device)
        places = places.to(device) if places is not None else None
        for start in range(0, count, self.batch_size):
            now = slice(start, min(start + self.batch_size, count))
            batch = images[order[now]]
            if batch.dtype == torch.uint8:
                batch = batch.float() / 255
            if places is not None:
                batch = crop_and_flip(batch, places[0, now], places[1, now], mirrored[now], self.pad)
            yield batch, labels[order[now]]


def crop_and_flip(images: Tensor, down: Tensor, across: Tensor, mirrored: Tensor, pad: int) -> Tensor:
    """Zero-pad, crop to the original size at given positions, and mirror some of the images.

    Args:
        images: (B, C, H, W).
        down: (B,), number of padded rows above the crop, 0 to 2 * pad.
        across: (B,), the same for columns.
        mirrored: (B,) booleans.
        pad: pixels on each side.
    """
    count, channels, height, width = images.shape
    rows = down.view(-1, 1) + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(count, width)
    columns = across.view(-1, 1) + torch.where(mirrored.view(-1, 1), width - 1 - columns, columns)
    padded = F.pad(images, (pad, pad, pad, pad))
    numbers = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    planes = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return padded[numbers, planes, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]
