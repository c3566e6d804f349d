"""Batches of images: from memory, or from files that worker processes decode."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from dataclasses import replace
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
CHUNK = 256
"""Images that a worker decodes at a time to keep them in memory."""


class Loader:
    """Batches of images; each iteration is one epoch. The same seed and epoch give the same batches.

    Args:
        data: the images, in memory or as files.
        batch_size: images per batch; the last batch of an epoch may be smaller.
        shuffle: whether to use a new order every epoch.
        seed: seed of order and augmentation.
        pad: zero pixels added on each side before a random crop to the original size; 0 for none. In memory only.
        flip: whether to mirror a random half of the images. In memory only.
        crop: for files: whether to crop and mirror at random, as for ImageNet, instead of taking the center.
        workers: processes that decode files; None chooses. The batches do not depend on it.

    >>> data = ImageSet(torch.zeros(5, 1, 8, 8), torch.zeros(5, dtype=torch.int64), classes=2)
    >>> [len(labels) for _, labels in Loader(data, batch_size=2)]
    [2, 2, 1]
    """

    def __init__(
        self,
        data: ImageSet | ImageFiles,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        pad: int = 0,
        flip: bool = False,
        crop: bool = False,
        workers: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ModebridgeError(f"Expected batch_size to be at least 1, but got {batch_size}; the paper uses 128.")
        self.data, self.batch_size = data, batch_size
        self.shuffle, self.seed = shuffle, seed
        self.pad, self.flip = pad, flip
        self._epoch = 0
        if isinstance(data, ImageFiles):
            self._tickets: list[list[Ticket]] = []
            self._decoder = _decoder(data, self._tickets, None if crop else data.size * 8 // 7, workers)

    def __len__(self) -> int:
        return -(-len(self.data) // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, so that a run can resume."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator, count = seeds.generator(self.seed, "epoch", self._epoch), len(self.data)
        self._epoch += 1
        order = torch.randperm(count, generator=generator) if self.shuffle else torch.arange(count)
        if isinstance(self.data, ImageFiles):
            return self._decoded(self.data, order, generator)
        return self._in_memory(self.data, order, generator)

    def _in_memory(self, data: ImageSet, order: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        count, device = len(data), data.images.device
        # All draws of the epoch at once, on the CPU: equal on every device, and one copy instead of one per batch.
        places = torch.randint(2 * self.pad + 1, (2, count), generator=generator) if self.pad or self.flip else None
        mirrored = torch.rand(count, generator=generator) < 0.5 if self.flip else torch.zeros(count, dtype=torch.bool)
        order, mirrored = order.to(device), mirrored.to(device)
        places = places.to(device) if places is not None else None
        for start in range(0, count, self.batch_size):
            now = slice(start, start + self.batch_size)
            batch = data.images[order[now]]
            if batch.dtype == torch.uint8:
                batch = batch.float() / 255
            if places is not None:
                batch = crop_and_flip(batch, places[0, now], places[1, now], mirrored[now], self.pad)
            yield batch, data.labels[order[now]]

    def _decoded(self, data: ImageFiles, order: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        chances = torch.randint(2**62, (len(data),), generator=generator)
        self._tickets[:] = _chunks(list(zip(order.tolist(), chances.tolist(), strict=True)), self.batch_size)
        for images, labels in self._decoder:
            # Copied as bytes, from pinned memory on CUDA.
            images, labels = (tensor.to(data.device, non_blocking=True) for tensor in (images, labels))
            yield images.float() / 255, labels


def _chunks(tickets: list[Ticket], size: int) -> list[list[Ticket]]:
    return [tickets[start : start + size] for start in range(0, len(tickets), size)]


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


def read_images(files: ImageFiles, size: int) -> ImageSet:
    """All images in memory, as uint8 (N, 3, size, size): scaled so that the shorter side fits, the rest cropped."""
    batches = _chunks([(number, 0) for number in range(len(files))], CHUNK)
    decoded = _decoder(replace(files, size=size, device="cpu"), batches, size)
    return ImageSet(torch.cat([images for images, _ in decoded]), files.labels, files.classes)


def _decoder(
    files: ImageFiles, batches: list[list[Ticket]], resize: int | None, workers: int | None = None
) -> DataLoader[tuple[Tensor, int]]:
    """Decodes batches of images as bytes: the center of those scaled to `resize`, or a random part for None."""
    if workers is None:
        # A few images are read faster than a worker starts.
        workers = min(16, max(1, (os.cpu_count() or 2) - 1)) if len(files) > 1000 else 0
    return DataLoader(
        _Decoded(files, resize),
        batch_sampler=batches,  # read by the loader in this process, in every epoch
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.device(files.device).type == "cuda",
        generator=torch.Generator(),  # it draws a seed for its workers; keep it off the global generator
    )


class _Decoded(Dataset[tuple[Tensor, int]]):
    """Images by ticket, as uint8 (3, size, size)."""

    def __init__(self, files: ImageFiles, resize: int | None) -> None:
        self._files, self._labels, self._resize = files, files.labels.tolist(), resize

    def __getitem__(self, ticket: Ticket) -> tuple[Tensor, int]:
        number, chance = ticket
        image, size = open_image(self._files.paths[number]), self._files.size
        if self._resize is None:
            image = random_crop(image, size, random.Random(chance))
        else:
            image = centre_crop(image, size, self._resize)
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
        # Too narrow for any crop: use the center, within the allowed aspect ratios.
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    cropped = image.crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BILINEAR)
    return cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if chance.random() < 0.5 else cropped
