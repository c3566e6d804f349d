"""Image files by class: found, split and shuffled without reading them."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = ["ImageFiles", "class_folders", "find_files", "find_images", "open_image"]

_ENDINGS = {".jpeg", ".jpg", ".png", ".ppm", ".bmp", ".webp"}


@dataclass(frozen=True)
class ImageFiles:
    """Image files and their labels, for data sets that do not fit in memory.

    Args:
        paths: one path per image.
        labels: (N,) int64.
        classes: number of classes K.
    """

    paths: tuple[str, ...]
    labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.labels):
            raise ModebridgeError(
                f"Expected as many labels as files, but got {len(self.labels)} for {len(self.paths)}; "
                "pass one label per file."
            )
        if not self.paths:
            raise ModebridgeError("Expected a data set to have images, but got none; check the folder and the split.")

    def __len__(self) -> int:
        return len(self.paths)

    def part(self, start: int, stop: int) -> ImageFiles:
        """The files from `start` up to `stop`."""
        return ImageFiles(self.paths[start:stop], self.labels[start:stop], self.classes)

    def pick(self, numbers: Tensor) -> ImageFiles:
        """The files with the given numbers, in their order."""
        return ImageFiles(tuple(self.paths[k] for k in numbers.tolist()), self.labels[numbers], self.classes)

    def shuffled(self, seed: int) -> ImageFiles:
        """The files in the order of Python's `random.Random(seed).shuffle`, which the authors use to split ImageNet."""
        order = list(range(len(self)))
        random.Random(seed).shuffle(order)
        return self.pick(torch.tensor(order))

    def fingerprint(self) -> str:
        """A hash of names and labels (the last two parts of each path, so that the set can move to another machine)."""
        names = "\n".join("/".join(Path(path).parts[-2:]) for path in self.paths)
        return hashlib.sha256(names.encode() + self.labels.numpy().tobytes()).hexdigest()


def find_images(folder: Path | str, classes: Sequence[str] | None = None) -> ImageFiles:
    """The images below FOLDER/CLASS/, classes and files in alphabetical order (as in torchvision's ImageFolder).

    Args:
        folder: contains one folder per class.
        classes: the class names in order; None uses all folders.
    """
    where = Path(folder)
    if not where.is_dir():
        raise ModebridgeError(f"Expected '{where}' to be a folder with one folder per class, but it does not exist.")
    names = list(classes) if classes is not None else class_folders(where)
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        inside = _images_below(where / name)
        if not inside:
            raise ModebridgeError(f"Expected images of class '{name}' below '{where / name}', but got none.")
        paths += inside
        labels += [label] * len(inside)
    if not names:
        raise ModebridgeError(f"Expected '{where}' to contain one folder per class, but it has none.")
    return ImageFiles(tuple(paths), torch.tensor(labels), len(names))


def find_files(folder: Path | str) -> ImageFiles:
    """All images below a folder, in alphabetical order, as one class."""
    paths = _images_below(Path(folder))
    if not paths:
        raise ModebridgeError(f"Expected images below '{folder}', but got none; check the path.")
    return ImageFiles(tuple(paths), torch.zeros(len(paths), dtype=torch.int64), 1)


def _images_below(folder: Path) -> list[str]:
    return sorted(
        os.path.join(root, file)  # noqa: PTH118 (a million files: Path objects would take seconds)
        for root, _, files in os.walk(folder)
        for file in files
        if os.path.splitext(file)[1].lower() in _ENDINGS  # noqa: PTH122
    )


def class_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, in alphabetical order, without hidden ones."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def open_image(path: str) -> Picture:
    """Open an image file as RGB."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ModebridgeError(
            "Expected Pillow to read image files, but it is not installed; pip install 'modebridge[images]'."
        ) from error
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as error:
        raise ModebridgeError(f"Expected '{path}' to be an image, but got '{error}'; download it again.") from error
