"""Images in files, by class: found, split and shuffled without reading them."""

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
    """Image files and their labels, for sets that do not fit in memory.

    Args:
        paths: one a image.
        labels: (N,) int64.
        classes: K.
    """

    paths: tuple[str, ...]
    labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.labels):
            raise ModebridgeError(
                f"Expected as many labels as files, but got {len(self.labels)} for {len(self.paths)}; "
                "give one label a file."
            )
        if not self.paths:
            raise ModebridgeError("Expected a data set to have images, but got none; check the folder and the split.")

    def __len__(self) -> int:
        return len(self.paths)

    def part(self, start: int, stop: int) -> ImageFiles:
        """The files from `start` up to `stop`."""
        return ImageFiles(self.paths[start:stop], self.labels[start:stop], self.classes)

    def shuffled(self, seed: int) -> ImageFiles:
        """The files in the order that Python's `random.Random(seed).shuffle` gives, as the authors split ImageNet."""
        order = list(range(len(self)))
        random.Random(seed).shuffle(order)
        return ImageFiles(tuple(self.paths[k] for k in order), self.labels[torch.tensor(order)], self.classes)

    def fingerprint(self) -> str:
        """A hash of names and labels (of the last two parts of each path: the set may move to another machine)."""
        names = "\n".join("/".join(Path(path).parts[-2:]) for path in self.paths)
        return hashlib.sha256(names.encode() + self.labels.numpy().tobytes()).hexdigest()


def find_images(folder: Path | str, classes: Sequence[str] | None = None) -> ImageFiles:
    """The images below FOLDER/CLASS/, classes and files in alphabetical order (as torchvision's ImageFolder has it).

    Args:
        folder: one folder a class in it.
        classes: the names of the classes in order; None takes the folders there are.
    """
    where = Path(folder)
    if not where.is_dir():
        raise ModebridgeError(f"Expected '{where}' to be a folder with one folder a class, but there is none.")
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
        raise ModebridgeError(f"Expected '{where}' to hold one folder a class, but it holds none.")
    return ImageFiles(tuple(paths), torch.tensor(labels), len(names))


def find_files(folder: Path | str) -> ImageFiles:
    """All images below a folder, in alphabetical order, as one class."""
    paths = _images_below(Path(folder))
    if not paths:
        raise ModebridgeError(f"Expected images below '{folder}', but got none; check the path.")
    return ImageFiles(tuple(paths), torch.zeros(len(paths), dtype=torch.int64), 1)


def _images_below(folder: Path) -> list[str]:
    return sorted(
        os.path.join(root, file)  # noqa: PTH118 (a million of them: Path objects cost seconds)
        for root, _, files in os.walk(folder)
        for file in files
        if os.path.splitext(file)[1].lower() in _ENDINGS  # noqa: PTH122
    )


def class_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, in alphabetical order; hidden ones are no classes."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def open_image(path: str) -> Picture:
    """An image file as red, green and blue."""
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
        raise ModebridgeError(f"Expected '{path}' to be an image, but got '{error}'; get it again.") from error
