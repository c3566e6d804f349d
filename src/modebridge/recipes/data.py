"""The data of a run: loaded, split, moved to the device, and served in batches."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from modebridge import seeds, trees
from modebridge.batches import map_inputs
from modebridge.data import ImageFiles, ImageSet, Loader, LoaderSet, Stream
from modebridge.data.loaderset import PlacedLoader
from modebridge.data.sets import Images
from modebridge.recipes.recipe import Recipe
from modebridge.recipes.splits import NAMED, DataFacts, class_names, load_splits, pixels
from modebridge.types import Inputs

Feed: TypeAlias = Loader | Stream | PlacedLoader
Split: TypeAlias = Literal["train", "valid", "test"]

BATCH = 256
"""Batch size when nothing is trained."""


class RunData:
    """Batches of a recipe's data, on the device where they are used.

    Args:
        recipe: the data and how to load it.
        seed: seed of the run; every loader has its own name, so none depends on what else is trained.
        folder: the folder with a named set's official files, see `load_splits`.
        device: the device for batches.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int = 0,
        folder: Path | str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.splits = load_splits(recipe.data, folder)
        self._data = recipe.data
        self._seed = seed
        self._size = pixels(recipe)
        self._device = torch.device(device)
        self._moved: dict[Split, Images] = {}

    def train(self, *names: str | int, bridges: bool = False) -> Feed:
        """The training images, shuffled and augmented, for one purpose; a user's loader does both itself."""
        batch = self._data.bridge_batch_size or self._data.batch_size if bridges else self._data.batch_size
        seed = seeds.seed_for(self._seed, *names, "batches")
        images = self._placed("train")
        if isinstance(images, ImageFiles):
            return self._stream(images, batch, train=True, seed=seed)
        if isinstance(images, LoaderSet):
            return images.on(self._device)
        return Loader(images, batch, shuffle=True, seed=seed, pad=self._data.pad, flip=self._data.flip)

    def valid(self) -> Feed:
        """The validation images, unaugmented."""
        return self._plain(self._placed("valid"))

    def test(self, numbers: Tensor | None = None) -> Feed:
        """The test images, unaugmented; only those with the given numbers if given (from a loader, the first ones)."""
        images = self._placed("test")
        if numbers is None:
            return self._plain(images)
        return self._plain(images, len(numbers)) if isinstance(images, LoaderSet) else self._plain(images.pick(numbers))

    def plain_train(self, count: int) -> Feed:
        """The first training images in order, unaugmented; a user's loader is used as it is."""
        return self._plain(self._placed("train"), count)

    def statistics(self, *names: str | int) -> Feed:
        """Images to re-estimate batch norm on: the training images as in training.

        For streamed sets the first 10,000 without augmentation, as in the authors' code.
        """
        return self.plain_train(10_000) if self.streams else self.train("statistics", *names)

    @property
    def streams(self) -> bool:
        """Whether training images are read from files during training."""
        return isinstance(self.splits.train, ImageFiles)

    def few(self) -> Inputs:
        """Two training images (or inputs by name) on the CPU, to find shapes."""
        if isinstance(self.splits.train, LoaderSet):
            return self.splits.train.few
        inputs, _ = next(iter(self.plain_train(2)))
        return map_inputs(lambda tensor: tensor.cpu(), inputs)

    def labels(self, split: Split) -> Tensor:
        """The labels of a split on the CPU, in the order of its images."""
        labels: Tensor = getattr(self.splits, split).labels
        return labels.cpu()

    def image(self, number: int) -> Tensor | None:
        """A test image as floats (C, H, W) on the CPU; None if inputs are not images."""
        shape, test = self.facts.image, self.splits.test
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3):
            return None
        if isinstance(test, LoaderSet):
            batches = (inputs for inputs, _ in test.on(torch.device("cpu")) if isinstance(inputs, Tensor))
            return next(islice((row for rows in batches for row in rows.unbind()), number, None))
        inputs, _ = next(iter(self._plain(test.part(number, number + 1))))
        assert isinstance(inputs, Tensor)
        return inputs[0].cpu()

    @cached_property
    def facts(self) -> DataFacts:
        """Number of classes, image shape, class names and counts."""
        classes, few = self.splits.train.classes, self.few()
        counts = {split: len(getattr(self.splits, split)) for split in ("train", "valid", "test")}
        image = tuple(few.shape[1:]) if isinstance(few, Tensor) else None
        return DataFacts(classes, image, class_names(self.splits.class_names, classes), counts)

    @property
    def fed_as(self) -> tuple[object, ...]:
        """All data settings that affect training, for keys; user data is identified by its hash, not its path."""
        data = self._data
        name = data.name if data.name in NAMED else "own"
        return (name, self.learned_from, data.batch_size, data.pad, data.flip)

    @cached_property
    def learned_from(self) -> str:
        """A hash of the images used in training."""
        return self._hash(self.splits.train) + self._hash(self.splits.valid)

    @cached_property
    def scored_on(self) -> str:
        """A hash of the images used for scores."""
        return self._hash(self.splits.valid) + self._hash(self.splits.test)

    def _hash(self, images: Images) -> str:
        if isinstance(images, LoaderSet):
            return images.fingerprint()
        if isinstance(images, ImageFiles):
            # The hash covers only names, and the same files at another size are different images.
            return images.fingerprint() + (f"@{self._data.size}" if self._data.size else "")
        tensors = {"images": images.images, "labels": images.labels}
        return hashlib.sha256(trees.fingerprint(tensors).encode()).hexdigest()

    def _placed(self, split: Split) -> Images:
        """The images of a split, moved to the device on first use."""
        if split not in self._moved:
            images: Images = getattr(self.splits, split)
            self._moved[split] = images.to(self._device) if isinstance(images, ImageSet) else images
        return self._moved[split]

    def _plain(self, images: Images, count: int | None = None) -> Feed:
        """Images in order, unaugmented."""
        if isinstance(images, LoaderSet):
            return images.on(self._device, count)
        images = images if count is None else images.part(0, count)
        return self._stream(images, BATCH) if isinstance(images, ImageFiles) else Loader(images, BATCH)

    def _stream(self, files: ImageFiles, batch: int, *, train: bool = False, seed: int = 0) -> Stream:
        # A few images are read faster than a worker starts.
        workers = min(16, max(1, (os.cpu_count() or 2) - 1)) if len(files) > 1000 else 0
        size = {"size": self._size, "resize": self._size * 8 // 7}
        return Stream(files, batch, train=train, shuffle=train, seed=seed, workers=workers, device=self._device, **size)
