"""The paper's data sets, with the authors' splits, and any folder of images sorted by class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import torch

from modebridge.data.cifar import read_cifar
from modebridge.data.image_cache import read_images
from modebridge.data.image_files import ImageFiles, class_folders, find_images
from modebridge.data.imageset import ImageSet
from modebridge.data.loaderset import LoaderSet
from modebridge.errors import ModebridgeError, near

__all__ = ["CLASS_NAMES", "SETS", "Splits", "cut_off", "load_folder", "load_set", "tiny_imagenet"]

CLASS_NAMES = {"cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]}
"""Class names, for data sets with few classes."""

Images = ImageSet | ImageFiles | LoaderSet
Held = TypeVar("Held", ImageSet, ImageFiles)

IN_MEMORY = 2**30
"""Maximum size in bytes of decoded images to keep in memory; larger folders are streamed."""


@dataclass(frozen=True)
class Splits:
    """The three parts of a data set: for training, for selection and calibration, and for reporting.

    Args:
        train: training images.
        valid: images for selection and calibration.
        test: images for reporting.
        class_names: names of the classes; empty if unknown.
    """

    train: Images
    valid: Images
    test: Images
    class_names: tuple[str, ...] = ()


def tiny_imagenet(folder: Path | str) -> tuple[ImageFiles, ImageFiles]:
    """The files of Tiny ImageNet: training by class, and the official validation images, used as the test set."""
    where = Path(folder)
    where = where / "tiny-imagenet-200" if (where / "tiny-imagenet-200").is_dir() else where
    names, annotations = where / "wnids.txt", where / "val" / "val_annotations.txt"
    for file in (names, annotations):
        if not file.is_file():
            raise ModebridgeError(
                f"Expected Tiny ImageNet in '{folder}', but got no '{file.name}'; pass the folder tiny-imagenet-200."
            )
    classes = sorted(names.read_text(encoding="utf-8").split())
    number = {name: label for label, name in enumerate(classes)}
    rows = [line.split("\t")[:2] for line in annotations.read_text(encoding="utf-8").splitlines() if line]
    paths = tuple(str(where / "val" / "images" / file) for file, _ in rows)
    labels = torch.tensor([number[name] for _, name in rows])
    return find_images(where / "train", classes), ImageFiles(paths, labels, len(classes))


def _cifar(folder: Path, classes: int) -> Splits:
    # The stored order is already shuffled.
    return _last_tenth_for_validation(*read_cifar(folder, classes))


def _tin200(folder: Path) -> Splits:
    train, test = (read_images(files) for files in tiny_imagenet(folder))
    # Stored by class; the authors' order is unknown, so ours is a seeded one.
    return _last_tenth_for_validation(train.shuffled(0), test)


def _last_tenth_for_validation(train: ImageSet, test: ImageSet) -> Splits:
    cut = len(train) * 9 // 10
    return Splits(train.part(0, cut), train.part(cut, len(train)), test)


def _in1k(folder: Path) -> Splits:
    train, test = find_images(folder / "train"), find_images(folder / "val")
    if train.classes != test.classes:
        raise ModebridgeError(
            f"Expected as many classes in '{folder / 'val'}' as in train, but got {test.classes} and {train.classes}; "
            "sort the validation images into folders by class."
        )
    train = train.shuffled(42)
    # 1,231,167 and 50,000 of ImageNet's 1,281,167; the same fraction of a smaller folder.
    held = 50_000 if len(train) > 500_000 else max(1, len(train) // 25)
    return Splits(train.part(0, len(train) - held), train.part(len(train) - held, len(train)), test)


SETS: dict[str, Callable[[Path], Splits]] = {
    "cifar10": partial(_cifar, classes=10),
    "cifar100": partial(_cifar, classes=100),
    "tin200": _tin200,
    "in1k": _in1k,
}
"""Data sets that are read from a folder, by name."""


def load_set(name: str, folder: Path | str) -> Splits:
    """A data set by name, split into three parts.

    Args:
        name: "cifar10", "cifar100", "tin200" or "in1k".
        folder: the folder with its official files.
    """
    if name not in SETS:
        raise ModebridgeError(f"Expected a known data set, but got '{name}'; {near(name, SETS)}")
    return SETS[name](Path(folder))


def cut_off(images: Held, parts: int = 1) -> list[Held]:
    """Images in a fixed random order, split: one tenth for each of `parts` further parts.

    >>> train, valid, test = cut_off(ImageSet(torch.zeros(30, 1), torch.zeros(30, dtype=torch.int64), 2), parts=2)
    >>> len(train), len(valid), len(test)
    (24, 3, 3)
    """
    held: int = max(1, len(images) // 10)
    if len(images) <= parts * held:
        raise ModebridgeError(
            f"Expected enough training images to cut off {parts} held-out split{'s' * (parts > 1)}, but got "
            f"{len(images)}; add images, or provide the other splits."
        )
    images = images.shuffled(0)
    cuts = [0, *range(len(images) - parts * held, len(images) + 1, held)]
    return [images.part(start, stop) for start, stop in pairwise(cuts)]


def load_folder(folder: Path, size: int) -> Splits:
    """Images in FOLDER/train/CLASS/, FOLDER/valid/CLASS/ (or val) and FOLDER/test/CLASS/.

    Missing splits are cut from train. All are in a fixed random order, so that any part of them has all classes.

    Args:
        folder: the folder that contains train.
        size: side in pixels to which images are scaled.
    """
    train = find_images(folder / "train")
    classes = class_folders(folder / "train")
    given: dict[str, ImageFiles] = {}
    for split, names in (("valid", ("valid", "val")), ("test", ("test",))):
        place = next((folder / name for name in names if (folder / name).is_dir()), None)
        if place is None:
            continue
        unknown = sorted(set(class_folders(place)) - set(classes))
        if unknown:
            raise ModebridgeError(
                f"Expected the classes of '{place}' to be those of train, but got '{unknown[0]}'; "
                f"{near(unknown[0], classes)}"
            )
        given[split] = find_images(place, classes).shuffled(0)
    rest, *parts = cut_off(train, 2 - len(given))
    missing = [split for split in ("valid", "test") if split not in given]
    files = {"train": rest, **given, **dict(zip(missing, parts, strict=True))}
    splits: dict[str, Images] = dict(files)
    if sum(map(len, files.values())) * 3 * size * size <= IN_MEMORY:
        splits = {split: read_images(part, size) for split, part in files.items()}
    return Splits(**splits, class_names=tuple(classes))
