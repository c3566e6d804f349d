"""The images of a run: read, split, put on the device, and cut into batches by name."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from pathlib import Path

import torch

from modebridge import seeds, trees
from modebridge.data import SETS, ImageFiles, ImageSet, Loader, Splits, Stream, load_set, noisy_digits
from modebridge.errors import ModebridgeError, near
from modebridge.recipes.config import DataConfig

__all__ = ["Feeds", "load_splits"]

Feed = Loader | Stream


def load_splits(data: DataConfig, folder: Path | str | None = None) -> Splits:
    """The images that a recipe names, cut in three.

    Args:
        data: the recipe's choice.
        folder: where the set's official files are; None where MODEBRIDGE_DATA says, or `data`. Digits need none.
    """
    if data.name == "digits":
        images = noisy_digits(data.noise)
        # Cut by count: 0 would leave a split empty, so a split that is not given takes a sensible part.
        train, valid = data.train or len(images) // 3, data.valid or len(images) // 5
        cut = train + valid
        last = min(cut + data.test, len(images)) if data.test else len(images)
        return Splits(images.part(0, train), images.part(train, cut), images.part(cut, last))
    if data.name not in SETS:
        raise ModebridgeError(
            f"Expected data.name to be 'digits' or a known data set, but got '{data.name}'; {near(data.name, SETS)}."
        )
    splits = load_set(data.name, folder or os.environ.get("MODEBRIDGE_DATA", "data"))

    def some(images: ImageSet | ImageFiles, count: int) -> ImageSet | ImageFiles:
        return images.part(0, count) if count else images

    return Splits(some(splits.train, data.train), some(splits.valid, data.valid), some(splits.test, data.test))


class Feeds:
    """Batches of a run's images, on the device where they are used.

    Args:
        splits: the images.
        data: how they are fed.
        seed: of the run; every loader has a name of its own, so none depends on what else is trained.
        size: pixels of a side, for sets that are streamed from files.
        device: where batches are wanted.
    """

    def __init__(self, splits: Splits, data: DataConfig, seed: int, size: int, device: torch.device) -> None:
        self.splits = splits
        self._data = data
        self._seed = seed
        self._size = size
        self._device = device

    def train(self, *names: str | int, bridges: bool = False) -> Feed:
        """The training images, shuffled and augmented, for one purpose."""
        batch = self._data.bridge_batch_size or self._data.batch_size if bridges else self._data.batch_size
        seed = seeds.seed_for(self._seed, *names, "batches")
        images = self._train
        if isinstance(images, ImageFiles):
            return self._stream(images, batch, train=True, shuffle=True, seed=seed)
        return Loader(images, batch, shuffle=True, seed=seed, pad=self._data.pad, flip=self._data.flip)

    def valid(self) -> Feed:
        """The validation images as they are."""
        return self.plain(self._valid)

    def test(self) -> Feed:
        """The test images as they are."""
        return self.plain(self._test)

    def few(self) -> torch.Tensor:
        """Two training images, to see shapes with."""
        images, _ = next(iter(self.plain(self.splits.train.part(0, 2))))
        return images.cpu()

    @cached_property
    def learned_from(self) -> str:
        """A hash of the images that training sees."""
        return _hash(self.splits.train) + _hash(self.splits.valid)

    @cached_property
    def scored_on(self) -> str:
        """A hash of the images that members are asked about."""
        return _hash(self.splits.valid) + _hash(self.splits.test)

    @cached_property
    def _train(self) -> ImageSet | ImageFiles:
        return self._moved(self.splits.train)

    @cached_property
    def _valid(self) -> ImageSet | ImageFiles:
        return self._moved(self.splits.valid)

    @cached_property
    def _test(self) -> ImageSet | ImageFiles:
        return self._moved(self.splits.test)

    def _moved(self, images: ImageSet | ImageFiles) -> ImageSet | ImageFiles:
        return images if isinstance(images, ImageFiles) else images.to(self._device)

    def statistics(self, *names: str | int) -> Feed:
        """Images to re-estimate batch norm on: the training images as they are learned from.

        Of sets that are streamed the first 10,000 without augmentation, as the authors take them.
        """
        if isinstance(self.splits.train, ImageFiles):
            return self.plain(self.splits.train.part(0, 10_000))
        return self.train("statistics", *names)

    def plain(self, images: ImageSet | ImageFiles) -> Feed:
        """Some images as they are, in order."""
        return self._stream(images, 256) if isinstance(images, ImageFiles) else Loader(images, 256)

    def _stream(
        self, files: ImageFiles, batch: int, *, train: bool = False, shuffle: bool = False, seed: int = 0
    ) -> Stream:
        # A handful of images is read sooner than a worker starts.
        workers = min(16, max(1, (os.cpu_count() or 2) - 1)) if len(files) > 1000 else 0
        return Stream(
            files,
            batch,
            train=train,
            shuffle=shuffle,
            seed=seed,
            size=self._size,
            resize=self._size * 8 // 7,
            workers=workers,
            device=self._device,
        )


def _hash(images: ImageSet | ImageFiles) -> str:
    if isinstance(images, ImageFiles):
        return images.fingerprint()
    return hashlib.sha256(trees.fingerprint({"images": images.images, "labels": images.labels}).encode()).hexdigest()
