"""The images of a recipe in three splits, from a named set, a folder of classes, or a user's function; and facts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from modebridge.data import ImageSet, LoaderSet, Splits, cut_off, load_folder, load_set, noisy_digits
from modebridge.data.sets import CLASS_NAMES, Images
from modebridge.errors import ModebridgeError, near
from modebridge.nets import SPECS
from modebridge.recipes.recipe import FOLDER, DataConfig, Recipe
from modebridge.recipes.user_code import call_function, find_function, seeded, split_reference

PARTS = ("train", "valid", "test")


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
        """As plain data, for a file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> DataFacts:
        """From the output of `to_dict`, also after a round trip through JSON."""
        try:
            image, names, counts = record["image"], record["class_names"], record["counts"]
            shape = None if image is None else tuple(int(side) for side in image)
            counted = {str(split): int(count) for split, count in counts.items()}
            return cls(int(record["classes"]), shape, tuple(map(str, names)), counted)
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


def facts_of(recipe: Recipe) -> DataFacts | None:
    """The facts about a named data set, without reading it; None for folders and functions, which must be read."""
    data = recipe.data
    if not _is_named(data.name):
        return None
    classes, image, _ = NAMED[data.name]
    if data.name == "in1k":
        image = (3, pixels(recipe), pixels(recipe))
    return DataFacts(classes, image, class_names(CLASS_NAMES.get(data.name, ()), classes), _counts(data))


def _counts(data: DataConfig) -> dict[str, int]:
    """How many images of a named set the recipe uses, by split."""
    counts, limits = NAMED[data.name][2], {part: getattr(data, part) for part in PARTS}
    if data.name == "digits":
        # One set, cut by count: the test split is the rest.
        held = {part: limits[part] or counts[part] for part in ("train", "valid")}
        counts = held | {"test": sum(counts.values()) - sum(held.values())}
    return {part: min(limits[part] or count, count) for part, count in counts.items()}


def pixels(recipe: Recipe) -> int:
    """The side of streamed images: from the recipe, else the network's own, else ImageNet's usual one."""
    usual = SPECS[recipe.net].image[-1] if recipe.net in SPECS else 224
    return recipe.data.size or usual


def class_names(names: Sequence[str], classes: int) -> tuple[str, ...]:
    """The names of classes, or their numbers."""
    return tuple(names) if len(names) == classes else tuple(str(k) for k in range(classes))


def load_splits(data: DataConfig, folder: Path | str | None = None) -> Splits:
    """Load the splits; those of a named set from a folder with its official files, or MODEBRIDGE_DATA, or `data`."""
    if data.name == "digits":
        images, (train, valid, test) = noisy_digits(data.noise), _counts(data).values()
        cut = train + valid
        return Splits(images.part(0, train), images.part(train, cut), images.part(cut, cut + test))
    if _is_named(data.name):
        splits = load_set(data.name, folder or os.environ.get("MODEBRIDGE_DATA", "data"))
        splits = replace(splits, class_names=tuple(CLASS_NAMES.get(data.name, ())))
    elif data.name.startswith(FOLDER):
        splits = load_folder(Path(data.name.removeprefix(FOLDER)), data.size)
    else:
        find_function(data.name, "data.name")
        with seeded(0):  # the same images in every process, even if the function draws them at random
            splits = _from_function(data)
    parts = {part: _first(getattr(splits, part), getattr(data, part), part) for part in PARTS}
    return Splits(**parts, class_names=splits.class_names)


def _first(images: Images, count: int, part: str) -> Images:
    if not count:
        return images
    if isinstance(images, LoaderSet):
        raise ModebridgeError(
            f"Expected data.{part} to be 0 for a loader, which is used as a whole, but got {count}; limit it in your "
            "function."
        )
    return images.part(0, count)


def _from_function(data: DataConfig) -> Splits:
    """The result of a user's function, as three splits with the same number of classes."""
    returned = call_function(data.name, "data.name")
    given = [getattr(returned, part) for part in PARTS] if isinstance(returned, Splits) else returned
    if not isinstance(given, tuple | list) or len(given) not in (2, 3) or all(isinstance(x, Tensor) for x in given):
        got = f"{type(given).__name__} of {len(given)}" if isinstance(given, tuple | list) else type(given).__name__
        raise ModebridgeError(
            f"Expected '{data.name}' to return (train, valid, test) or (train, test), each a pair of tensors, an "
            f"ImageSet or a loader, but got {got}; return two or three parts."
        )
    names = PARTS if len(given) == 3 else ("train", "test")
    parts: dict[str, Images] = {name: _part(part, name) for name, part in zip(names, given, strict=True)}
    classes = max(part.classes for part in parts.values())
    for name, part in parts.items():
        if isinstance(part, ImageSet) and part.classes != classes:
            parts[name] = replace(part, classes=classes)
    if "valid" not in parts:
        train = parts["train"]
        if not isinstance(train, ImageSet):
            raise ModebridgeError(
                f"Expected '{data.name}' to return three loaders, but got two, and a loader cannot be split; return "
                "(train, valid, test)."
            )
        parts["train"], parts["valid"] = cut_off(train)
    _check_augmentation(data, parts["train"])
    class_names = [part.class_names for part in parts.values() if isinstance(part, LoaderSet) and part.class_names]
    return Splits(**parts, class_names=tuple(class_names[0]) if class_names else ())


def _part(given: object, name: str) -> ImageSet | LoaderSet:
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


def _check_augmentation(data: DataConfig, train: Images) -> None:
    if not (data.pad or data.flip) or (isinstance(train, ImageSet) and train.images.dim() == 4):
        return
    got = "a loader" if isinstance(train, LoaderSet) else "inputs of another kind"
    raise ModebridgeError(
        f"Expected images in one tensor for data.pad and data.flip, but '{data.name}' returns {got}; set both to 0 "
        "and augment in your function."
    )
