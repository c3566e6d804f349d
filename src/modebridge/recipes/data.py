"""The data of a run: loaded from a named set, a folder or a function, split, and served in batches on the device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from modebridge import seeds
from modebridge.batches import map_inputs
from modebridge.data import (
    ImageFiles,
    ImageSet,
    Loader,
    LoaderSet,
    Splits,
    cut_off,
    load_folder,
    load_set,
    noisy_digits,
)
from modebridge.data.sets import CIFAR10, NAMED, Images
from modebridge.deploy.inputs import pixel_range
from modebridge.errors import ModebridgeError, near
from modebridge.nets import SPECS
from modebridge.recipes.recipe import DataConfig, Recipe
from modebridge.recipes.user_code import FOLDER, call_function, find_function, seeded, split_reference
from modebridge.types import Inputs

Feed: TypeAlias = Loader | LoaderSet
Split: TypeAlias = Literal["train", "valid", "test"]

PARTS: tuple[Split, ...] = ("train", "valid", "test")
BATCH = 256
"""Batch size when nothing is trained."""


@dataclass(frozen=True)
class DataFacts:
    """What networks and reports need to know about a data set."""

    classes: int
    image: tuple[int, ...] | None  # (C, H, W), or the shape of any other single input; None if there are several inputs
    class_names: tuple[str, ...]  # their numbers if unknown
    counts: Mapping[str, int]  # images by split
    cut: bool = False  # whether validation images were split off the user's training images
    pixels: tuple[float, float] = (0.0, 1.0)  # the lowest and the highest of the user's images, if they are others

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> DataFacts:
        """From the output of `asdict`, also after a round trip through JSON."""
        lists = {name: tuple(entry) for name, entry in record.items() if isinstance(entry, list)}
        return cls(**{**record, **lists})


class RunData:
    """Batches of a recipe's data, on the device where they are used.

    Args:
        recipe: the data and how to load it.
        seed: seed of the run; every loader has its own name, so none depends on what else is trained.
        folder: the folder with a named set's official files, see `load_splits`.
        device: the device for batches.
    """

    def __init__(
        self, recipe: Recipe, seed: int = 0, folder: Path | str | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.folder = folder
        self.splits = load_splits(recipe.data, folder, pixels(recipe))
        self._data = recipe.data
        self._seed = seed
        self._device = torch.device(device)
        self._placed: dict[Split, Images] = {}

    def train(self, *names: str | int, bridges: bool = False) -> Feed:
        """The training images, shuffled and augmented, for one purpose; a user's loader does both itself."""
        data, images = self._data, self._part("train")
        seed = seeds.seed_for(self._seed, *names, "batches")
        if isinstance(images, LoaderSet):
            return images.to(self._device, seed)
        batch = (bridges and data.bridge_batch_size) or data.batch_size
        return Loader(images, batch, shuffle=True, seed=seed, pad=data.pad, flip=data.flip, crop=True)

    def valid(self) -> Feed:
        return self._plain(self._part("valid"))

    def test(self, numbers: Tensor | None = None) -> Feed:
        """The test images, unaugmented; only those with the given numbers, which ascend, if given."""
        images = self._part("test")
        return self._plain(images if numbers is None else images.pick(numbers))

    def plain_train(self, count: int) -> Feed:
        """The first training images in order, unaugmented; a user's loader is used as it is."""
        return self._plain(self._part("train").part(0, count))

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
        return getattr(self.splits, split).labels.cpu()  # type: ignore[no-any-return]

    def image(self, number: int) -> Tensor | None:
        """A test image as floats (C, H, W) on the CPU; None if inputs are not images."""
        shape = self.facts.image
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3):
            return None
        inputs, _ = next(iter(self.test(torch.tensor([number]))))
        assert isinstance(inputs, Tensor)
        return inputs[0].cpu()

    @cached_property
    def facts(self) -> DataFacts:
        classes, few = self.splits.train.classes, self.few()
        image = tuple(few.shape[1:]) if isinstance(few, Tensor) else None
        counts: dict[str, int] = {split: len(self.labels(split)) for split in PARTS}
        names = _class_names(self.splits.class_names, classes)
        pixels = (0.0, 1.0) if _is_named(self._data.name) else pixel_range(few)
        return DataFacts(classes, image, names, counts, self.splits.cut, pixels)

    @property
    def fed_as(self) -> tuple[object, ...]:
        """All data settings that affect training, for keys; user data is identified by its hash, not its path."""
        data = self._data
        name = data.name if data.name in NAMED else "own"
        return name, self.learned_from, data.batch_size, data.pad, data.flip

    @cached_property
    def learned_from(self) -> str:
        """A hash of the images used in training."""
        return self.splits.train.fingerprint() + self.splits.valid.fingerprint()

    @cached_property
    def scored_on(self) -> str:
        """A hash of the images used for scores."""
        return self.splits.valid.fingerprint() + self.splits.test.fingerprint()

    def _part(self, split: Split) -> Images:
        if split not in self._placed:
            self._placed[split] = getattr(self.splits, split).to(self._device)
        return self._placed[split]

    def _plain(self, images: Images) -> Feed:
        return images.to(self._device) if isinstance(images, LoaderSet) else Loader(images, BATCH)


def _class_names(names: Sequence[str], classes: int) -> tuple[str, ...]:
    return tuple(names) if len(names) == classes else tuple(map(str, range(classes)))


def facts_of(recipe: Recipe) -> DataFacts | None:
    """The facts about a named data set, without reading it; None for folders and functions, which must be read."""
    data = recipe.data
    if not _is_named(data.name):
        return None
    classes, image, _ = NAMED[data.name]
    if data.name == "in1k":
        image = (3, pixels(recipe), pixels(recipe))
    return DataFacts(classes, image, _class_names(CIFAR10 if data.name == "cifar10" else (), classes), _counts(data))


def _is_named(name: str) -> bool:
    """Whether it is a named data set, not a folder or a function; unknown names raise an error."""
    if name.startswith(FOLDER) or split_reference(name) is not None:
        return False
    if name not in NAMED:
        raise ModebridgeError(
            f"Expected data.name to be a known data set, folder:PATH or FILE.py:FUNCTION, but got '{name[:80]}'; "
            f"{near(name[:80], NAMED)}"
        )
    return True


def _counts(data: DataConfig) -> dict[str, int]:
    """How many images of a named set the recipe uses, by split."""
    counts, limits = NAMED[data.name][2], {str(part): getattr(data, part) for part in PARTS}
    if data.name == "digits":
        # One set, cut by count: the test split is the rest.
        held = {part: limits[part] or counts[part] for part in ("train", "valid")}
        counts = held | {"test": sum(counts.values()) - sum(held.values())}
    return {part: min(limits[part] or count, count) for part, count in counts.items()}


def pixels(recipe: Recipe) -> int:
    """The side of streamed images: from the recipe, else the network's own, else ImageNet's usual one."""
    return recipe.data.size or (SPECS[recipe.net].image[-1] if recipe.net in SPECS else 224)


def load_splits(data: DataConfig, folder: Path | str | None = None, size: int = 224) -> Splits:
    """Load the splits; a named set from `folder`, MODEBRIDGE_DATA, or `data`. Streamed images get the side `size`."""
    if data.name == "digits":
        images, (train, valid, test) = noisy_digits(data.noise), _counts(data).values()
        cut = train + valid
        return Splits(images.part(0, train), images.part(train, cut), images.part(cut, cut + test))
    if _is_named(data.name):
        splits = load_set(data.name, folder or os.environ.get("MODEBRIDGE_DATA", "data"))
    elif data.name.startswith(FOLDER):
        splits = load_folder(Path(data.name.removeprefix(FOLDER)), data.size)
    else:
        find_function(data.name, "data.name")
        with seeded(0):  # the same images in every process, even if the function draws them at random
            splits = _from_function(data)
    parts: dict[str, Images] = {}
    for name in PARTS:
        part, count = getattr(splits, name), getattr(data, name)
        if count and isinstance(part, LoaderSet):
            raise ModebridgeError(
                f"Expected data.{name} to be 0 for a loader, which is used as a whole, but got {count}; limit it in "
                "your function."
            )
        part = part.part(0, count) if count else part
        parts[name] = replace(part, size=size) if isinstance(part, ImageFiles) else part
    return Splits(**parts, class_names=splits.class_names, cut=splits.cut)


def _from_function(data: DataConfig) -> Splits:
    """The result of a user's function, as three splits with the same number of classes."""
    given = call_function(data.name, "data.name")
    given = [getattr(given, part) for part in PARTS] if isinstance(given, Splits) else given
    if not isinstance(given, tuple | list) or len(given) not in (2, 3) or all(isinstance(x, Tensor) for x in given):
        several = isinstance(given, tuple | list)
        got = f"{type(given).__name__} of {len(given)}" if several else type(given).__name__
        if several and all(isinstance(part, Tensor) for part in given):
            got += " tensors, which is one part"
        raise ModebridgeError(
            f"Expected '{data.name}' to return (train, valid, test) or (train, test), each a pair of tensors, an "
            f"ImageSet or a loader, but got {got}; return two or three parts, as ((images, labels), (images, labels))."
        )
    names = PARTS if len(given) == 3 else ("train", "test")
    parts = {name: _given_part(part, name) for name, part in zip(names, given, strict=True)}
    classes = max(part.classes for part in parts.values())
    parts = {k: replace(part, classes=classes) if isinstance(part, ImageSet) else part for k, part in parts.items()}
    train, named = parts["train"], [part.class_names for part in parts.values() if isinstance(part, LoaderSet)]
    if (data.pad or data.flip) and not (isinstance(train, ImageSet) and train.images.dim() == 4):
        got = "a loader" if isinstance(train, LoaderSet) else "inputs of another kind"
        raise ModebridgeError(
            f"Expected images in one tensor for data.pad and data.flip, but '{data.name}' returns {got}; set both to 0 "
            "and augment in your function."
        )
    cut = "valid" not in parts
    if cut:
        if not isinstance(train, ImageSet):
            raise ModebridgeError(
                f"Expected '{data.name}' to return three loaders, but got two, and a loader cannot be split; return "
                "(train, valid, test)."
            )
        parts["train"], parts["valid"] = cut_off(train)
    return Splits(**parts, class_names=next(filter(None, named), ()), cut=cut)


def _given_part(given: object, name: str) -> ImageSet | LoaderSet:
    if isinstance(given, ImageSet):
        return given
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(x, Tensor) for x in given):
        images, labels = given
        if labels.is_floating_point() or labels.is_complex() or labels.dim() != 1 or not len(labels):
            raise ModebridgeError(
                f"Expected the labels of {name} to be integers of shape (N,), but got {labels.dtype} "
                f"{tuple(labels.shape)}; pass class indices."
            )
        return ImageSet(images, labels.long(), int(labels.max()) + 1)
    return LoaderSet(given, name, ordered=name != "train")  # type: ignore[arg-type]  # LoaderSet checks it
