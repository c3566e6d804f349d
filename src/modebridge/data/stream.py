"""Batches of images: from memory, augmented a batch at a time, or from files that worker processes decode."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from modebridge import seeds
from modebridge.data.images import ImageFiles, ImageSet, centre_crop, open_image
from modebridge.errors import ModebridgeError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Ticket = tuple[int, int]
"""The file's index and the seed of its crop, so that the result does not depend on the worker."""


class _Epochs:
    """Batches of numbers 0 to count - 1. Each iteration is one epoch and moves on to the next.

    The same seed and epoch give the same batches; `set_epoch` jumps to any epoch, so a run can resume.
    """

    def __init__(self, count: int, batch_size: int, shuffle: bool, seed: int) -> None:
        if batch_size < 1:
            raise ModebridgeError(f"Expected batch_size to be at least 1, but got {batch_size}; the paper uses 128.")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self._count = count
        self._epoch = 0

    def __len__(self) -> int:
        return -(-self._count // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._epoch = epoch

    def _begin(self) -> tuple[Tensor, torch.Generator]:
        """The order of the next epoch, and the generator for its other draws."""
        generator = seeds.generator(self.seed, "epoch", self._epoch)
        self._epoch += 1
        order = torch.randperm(self._count, generator=generator) if self.shuffle else torch.arange(self._count)
        return order, generator

    def _slices(self) -> list[slice]:
        return [slice(k, min(k + self.batch_size, self._count)) for k in range(0, self._count, self.batch_size)]


class Loader(_Epochs):
    """Batches of an image set, augmented a batch at a time; the same seed and epoch give the same batches.

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
        super().__init__(len(data), batch_size, shuffle, seed)
        self.data = data
        self.pad = pad
        self.flip = flip

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._batches(*self._begin())

    def _batches(self, order: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.data.images, self.data.labels
        count, device = len(self.data), images.device
        # All draws of the epoch at once, on the CPU: equal on every device, and one copy instead of one per batch.
        places = torch.randint(2 * self.pad + 1, (2, count), generator=generator) if self.pad or self.flip else None
        mirrored = torch.rand(count, generator=generator) < 0.5 if self.flip else torch.zeros(count, dtype=torch.bool)
        order, mirrored = order.to(device), mirrored.to(device)
        places = places.to(device) if places is not None else None
        for now in self._slices():
            batch = images[order[now]]
            if batch.dtype == torch.uint8:
                batch = batch.float() / 255
            if places is not None:
                batch = crop_and_flip(batch, places[0, now], places[1, now], mirrored[now], self.pad)
            yield batch, labels[order[now]]


def crop_and_flip(images: Tensor, down: Tensor, across: Tensor, mirrored: Tensor, pad: int) -> Tensor:
    """Zero-pad each side, crop to the original size `down` rows (0 to 2 * pad) and `across` columns on, mirror some."""
    count, channels, height, width = images.shape
    rows = down.view(-1, 1) + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(count, width)
    columns = across.view(-1, 1) + torch.where(mirrored.view(-1, 1), width - 1 - columns, columns)
    padded = F.pad(images, (pad, pad, pad, pad))
    numbers = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    planes = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return padded[numbers, planes, rows.view(count, 1, height, 1), columns.view(count, 1, 1, width)]


class Stream(_Epochs):
    """Batches of image files; the same seed and epoch give the same batches, whatever the number of workers.

    Args:
        files: the images.
        batch_size: images per batch; the last batch of an epoch may be smaller.
        train: whether to use random crops and flips instead of the centre crop.
        shuffle: whether to use a new order every epoch.
        seed: seed of order and crops.
        size: output side in pixels.
        resize: shorter side in pixels before the centre crop.
        workers: number of processes that decode; 0 decodes in this one.
        device: where batches are placed; they are copied as bytes, from pinned memory on CUDA.
    """

    def __init__(
        self,
        files: ImageFiles,
        batch_size: int,
        *,
        train: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        size: int = 224,
        resize: int = 256,
        workers: int = 4,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(len(files), batch_size, shuffle, seed)
        if resize < size:
            raise ModebridgeError(f"Expected resize to be at least size {size}, but got {resize}; increase it.")
        self.files = files
        self._device = torch.device(device)
        self._tickets: list[list[Ticket]] = []
        self._loader: DataLoader[tuple[Tensor, int]] = DataLoader(
            _Decoded(files, size, None if train else resize),
            batch_sampler=self._tickets,  # read by the loader in this process
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # the loader draws a seed for its workers; keep it off the global generator
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order, generator = self._begin()
        chances = torch.randint(2**62, (len(self.files),), generator=generator)
        tickets = list(zip(order.tolist(), chances.tolist(), strict=True))
        self._tickets[:] = [tickets[now] for now in self._slices()]
        for images, labels in self._loader:
            images, labels = (tensor.to(self._device, non_blocking=True) for tensor in (images, labels))
            yield images.float() / 255, labels


class _Decoded(Dataset[tuple[Tensor, int]]):
    """Images by ticket, as uint8 (3, size, size)."""

    def __init__(self, files: ImageFiles, size: int, resize: int | None) -> None:
        self._files = files
        self._labels = files.labels.tolist()
        self._size = size
        self._resize = resize

    def __getitem__(self, ticket: Ticket) -> tuple[Tensor, int]:
        number, chance = ticket
        image = open_image(self._files.paths[number])
        if self._resize is None:
            image = random_crop(image, self._size, random.Random(chance))
        else:
            image = centre_crop(image, self._size, self._resize)
        return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy()), self._labels[number]


def random_crop(image: Picture, size: int, chance: random.Random) -> Picture:
    """Crop 8 to 100 % of the area, with an aspect ratio of 3:4 to 4:3, resize to size x size, mirror half the time.

    The same as torchvision's RandomResizedCrop and RandomHorizontalFlip with their defaults.
    """
    from PIL import Image

    width, height = image.size
    for _ in range(10):
        area = width * height * chance.uniform(0.08, 1.0)
        ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = chance.randint(0, width - w), chance.randint(0, height - h)
            break
    else:
        # Too narrow for any crop: use the centre, within the allowed aspect ratios.
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    cropped = image.crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BILINEAR)
    return cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if chance.random() < 0.5 else cropped
