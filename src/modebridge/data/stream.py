"""Batches from image files, decoded and cropped by worker processes while the last one is learned from."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from modebridge import seeds
from modebridge.data.image_files import ImageFiles, open_image
from modebridge.errors import ModebridgeError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = ["Stream", "centre_crop", "random_crop"]

Ticket = tuple[int, int]
"""Which file, and the seed of its crop: what comes out does not depend on which worker takes it."""


def random_crop(image: Picture, size: int, chance: random.Random) -> Picture:
    """A part of 8 to 100 % of the area, of a shape between 3:4 and 4:3, scaled to size x size, mirrored half the time.

    Torchvision's RandomResizedCrop and RandomHorizontalFlip with their defaults.
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
        # An image so narrow that nothing fits: the middle of it, as far as the shapes allow.
        w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        left, top = (width - w) // 2, (height - h) // 2
    cropped = image.crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BILINEAR)
    return cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if chance.random() < 0.5 else cropped


def centre_crop(image: Picture, size: int, resize: int) -> Picture:
    """The shorter side scaled to `resize`, then the middle of it."""
    from PIL import Image

    width, height = image.size
    short = min(width, height)
    w, h = int(resize * width / short), int(resize * height / short)
    left, top = round((w - size) / 2), round((h - size) / 2)
    return image.resize((w, h), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


class Stream:
    """Batches of image files; the same seed and epoch give the same batches, whatever the number of workers.

    Iterating moves on to the next epoch; `set_epoch` goes to any.

    Args:
        files: the images.
        batch_size: B; the last batch of an epoch is smaller where it does not divide the set.
        train: random crops and flips; else the centre.
        shuffle: a new order every epoch.
        seed: of order and crops.
        size: pixels of a side of what comes out.
        resize: pixels of the shorter side before the centre is cut out.
        workers: processes that decode; 0 decodes in this one.
        device: where batches are put; they travel as bytes, from pinned memory where that helps.
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
        if batch_size < 1:
            raise ModebridgeError(f"Expected batch_size to be at least 1, but got {batch_size}; 256 is the paper's.")
        if resize < size:
            raise ModebridgeError(f"Expected resize to be at least size {size}, but got {resize}; make it larger.")
        self.files = files
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self._epoch = 0
        self._device = torch.device(device)
        self._tickets: list[list[Ticket]] = []
        self._loader: DataLoader[tuple[Tensor, int]] = DataLoader(
            _Decoded(files, size, None if train else resize),
            batch_sampler=_Batches(self),
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # the loader draws a seed for its workers, which is not to be the global one
        )

    def __len__(self) -> int:
        return -(-len(self.files) // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of `epoch`."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (batch for batch, _ in self.shared(0, 1))

    def shared(self, rank: int, size: int) -> Iterator[tuple[tuple[Tensor, Tensor], int]]:
        """One of several processes' rows of every batch, and how many rows the batch has in all."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        generator = seeds.generator(self.seed, "epoch", epoch)
        count = len(self.files)
        order = torch.randperm(count, generator=generator) if self.shuffle else torch.arange(count)
        chances = torch.randint(2**62, (count,), generator=generator)
        tickets = list(zip(order.tolist(), chances.tolist(), strict=True))
        whole = [tickets[start : start + self.batch_size] for start in range(0, count, self.batch_size)]
        # A process without a row of its own takes the first, which will not weigh anything.
        self._tickets = [batch[rank::size] or batch[:1] for batch in whole]
        for (images, labels), batch in zip(self._loader, whole, strict=True):
            images, labels = (tensor.to(self._device, non_blocking=True) for tensor in (images, labels))
            yield (images.float() / 255, labels), len(batch)


class _Batches:
    """What each batch of the coming epoch is made of, asked for by the loader in this process."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[list[Ticket]]:
        return iter(self._stream._tickets)

    def __len__(self) -> int:
        return len(self._stream)


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
