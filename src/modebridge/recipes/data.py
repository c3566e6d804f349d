"""The data of a run: loaded, split, moved to the device, and served in batches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from modebridge import seeds, trees
from modebridge.batches import map_inputs
from modebridge.data import ImageFiles, ImageSet, Loader, LoaderSet, Splits, Stream
from modebridge.data.loaderset import PlacedLoader
from modebridge.data.sets import CLASS_NAMES, Images
from modebridge.errors import ModebridgeError, near
from modebridge.nets import SPECS
from modebridge.recipes.recipe import FOLDER, Recipe
from modebridge.recipes.splits import load_splits
from modebridge.recipes.user_code import split_reference
from modebridge.types import Inputs

__all__ = ["NAMED", "DataFacts", "RunData", "facts_of"]

Feed: TypeAlias = Loader | Stream | PlacedLoader
Split: TypeAlias = Literal["train", "valid", "test"]

BATCH = 256
"""Batch size when nothing is trained."""


@dataclass(frozen=True)
class DataFacts:
    """What networks and reports need to know about a data set.

    Args:
        classes: number of classes K.
        image: (C, H, W) of one image, or the shape of any other single input; None if there are several inputs.
        class_names: names of the classes; their numbers if unknown.
        counts: number of images by split.
    """

    classes: int
    image: tuple[int, ...] | None
    class_names: tuple[str, ...]
    counts: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As a dict of plain data, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> DataFacts:
        """From the output of `to_dict`, also after a round trip through JSON.

        >>> facts = DataFacts(2, (3, 8, 8), ("cat", "dog"), {"train": 5, "valid": 1, "test": 1})
        >>> DataFacts.from_dict(facts.to_dict()) == facts
        True
        """
        try:
            image = record["image"]
            return cls(
                int(record["classes"]),
                None if image is None else tuple(int(side) for side in image),
                tuple(str(name) for name in record["class_names"]),
                {str(split): int(count) for split, count in record["counts"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModebridgeError(
                f"Expected the facts of a data set, but got {str(record)[:80]}; read the data again."
            ) from error


NAMED: dict[str, tuple[int, tuple[int, int, int], dict[str, int]]] = {
    "digits": (10, (1, 8, 8), {"train": 599, "valid": 359, "test": 839}),
    "cifar10": (10, (3, 32, 32), {"train": 45_000, "valid": 5_000, "test": 10_000}),
    "cifar100": (100, (3, 32, 32), {"train": 45_000, "valid": 5_000, "test": 10_000}),
    "tin200": (200, (3, 64, 64), {"train": 90_000, "valid": 10_000, "test": 10_000}),
    "in1k": (1000, (3, 224, 224), {"train": 1_231_167, "valid": 50_000, "test": 50_000}),
}
"""Number of classes, image shape, and images by split."""


def facts_of(recipe: Recipe) -> DataFacts | None:
    """The facts about a named data set, without reading it; None for folders and functions, which must be read."""
    data = recipe.data
    if data.name.startswith(FOLDER) or split_reference(data.name) is not None:
        return None
    if data.name not in NAMED:
        raise ModebridgeError(
            f"Expected data.name to be a known data set, folder:PATH or FILE.py:FUNCTION, but got '{data.name[:80]}'; "
            f"{near(data.name[:80], NAMED)}"
        )
    classes, image, counts = NAMED[data.name]
    if data.name == "in1k":
        image = (3, _pixels(recipe), _pixels(recipe))
    limits = {"train": data.train, "valid": data.valid, "test": data.test}
    if data.name == "digits":
        # One set, cut by count: the test split is the rest.
        total, held = sum(counts.values()), {split: limits[split] or counts[split] for split in ("train", "valid")}
        counts = held | {"test": total - sum(held.values())}
    taken = {split: min(limits[split] or count, count) for split, count in counts.items()}
    return DataFacts(classes, image, _names(CLASS_NAMES.get(data.name, ()), classes), taken)


class RunData:
    """Batches of a recipe's data, on the device where they are used.

    Args:
        recipe: the data and how to load it.
        seed: seed of the run; every loader has its own name, so none depends on what else is trained.
        folder: the folder with a named set's official files, see `load_splits`.
        device: the device for batches.
        splits: the images, if already loaded.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int = 0,
        folder: Path | str | None = None,
        device: torch.device | str = "cpu",
        splits: Splits | None = None,
    ) -> None:
        self.splits = splits or load_splits(recipe.data, folder)
        self._data = recipe.data
        self._seed = seed
        self._size = _pixels(recipe)
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
        if isinstance(images, LoaderSet):
            return self._plain(images, len(numbers))
        return self._plain(images.pick(numbers))

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
        return self._split(split).labels.cpu()

    def image(self, number: int) -> Tensor | None:
        """A test image as floats (C, H, W) on the CPU; None if inputs are not images."""
        shape = self.facts.image
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3):
            return None
        test = self.splits.test
        if isinstance(test, LoaderSet):
            return self._image_of_loader(test, number)
        inputs, _ = next(iter(self._plain(test.part(number, number + 1))))
        assert isinstance(inputs, Tensor)
        return inputs[0].cpu()

    def _image_of_loader(self, test: LoaderSet, number: int) -> Tensor:
        start = 0
        for inputs, labels in test.on(torch.device("cpu")):
            if number < start + len(labels):
                assert isinstance(inputs, Tensor)
                return inputs[number - start]
            start += len(labels)
        raise ModebridgeError(
            f"Expected test to yield {len(test)} images every time, but got {start}; use a loader that yields all."
        )

    @cached_property
    def facts(self) -> DataFacts:
        """Number of classes, image shape, class names and counts."""
        classes = self.splits.train.classes
        few = self.few()
        counts = {split: len(self._split(split)) for split in ("train", "valid", "test")}
        image = tuple(few.shape[1:]) if isinstance(few, Tensor) else None
        return DataFacts(classes, image, _names(self.splits.class_names, classes), counts)

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

    def _split(self, split: Split) -> Images:
        images: Images = getattr(self.splits, split)
        return images

    def _placed(self, split: Split) -> Images:
        """The images of a split, moved to the device on first use."""
        if split not in self._moved:
            images = self._split(split)
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
        return Stream(
            files,
            batch,
            train=train,
            shuffle=train,
            seed=seed,
            size=self._size,
            resize=self._size * 8 // 7,
            workers=workers,
            device=self._device,
        )


def _pixels(recipe: Recipe) -> int:
    """The side of streamed images: from the recipe, else the network's own, else ImageNet's usual one."""
    usual = SPECS[recipe.net].image[-1] if recipe.net in SPECS else 224
    return recipe.data.size or usual


def _names(names: Sequence[str], classes: int) -> tuple[str, ...]:
    return tuple(names) if len(names) == classes else tuple(str(k) for k in range(classes))
