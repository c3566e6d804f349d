"""Images and labels: in memory (`ImageSet`), as files (`ImageFiles`), or from a user's loader (`LoaderSet`)."""

from __future__ import annotations

import copy
import hashlib
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from modebridge import seeds, trees
from modebridge.batches import apart, check_batch, first_batch, flatten, go_to_epoch, map_inputs, rows_of, take_rows
from modebridge.errors import ModebridgeError, needed, quoting
from modebridge.types import Batch, Batches

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_ENDINGS = {".jpeg", ".jpg", ".png", ".ppm", ".bmp", ".webp"}


@dataclass(frozen=True)
class ImageSet:
    """Images and labels that fit in memory.

    Args:
        images: (N, C, H, W), uint8 or floats.
        labels: (N,) int64.
        classes: number of classes K.
    """

    images: Tensor
    labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        _check_counts(len(self.images), len(self.labels))
        if self.images.is_floating_point() and not bool(torch.isfinite(self.images).all()):
            raise ModebridgeError("Expected images to be finite, but got NaN or Inf; clean the data first.")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= self.classes:
            raise ModebridgeError(
                f"Expected labels to be in [0, {self.classes}), but got {low} to {high}; check the number of classes."
            )

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, stop: int) -> ImageSet:
        """The images from `start` up to `stop`, in the stored order."""
        return ImageSet(self.images[start:stop], self.labels[start:stop], self.classes)

    def pick(self, numbers: Tensor) -> ImageSet:
        """The images with the given numbers, in their order."""
        return ImageSet(self.images[numbers], self.labels[numbers], self.classes)

    def shuffled(self, seed: int) -> ImageSet:
        """The same images in a fixed random order, for sets that are stored by class."""
        return self.pick(torch.randperm(len(self), generator=seeds.generator(seed, "order")))

    def to(self, device: torch.device | str) -> ImageSet:
        return ImageSet(self.images.to(device), self.labels.to(device), self.classes)

    def fingerprint(self) -> str:
        tensors = {"images": self.images, "labels": self.labels}
        return hashlib.sha256(trees.fingerprint(tensors).encode()).hexdigest()


@dataclass(frozen=True)
class ImageFiles:
    """Image files and their labels, for data sets that do not fit in memory."""

    paths: tuple[str, ...]
    labels: Tensor  # (N,) int64
    classes: int
    size: int = 224  # the side in pixels to which images are scaled when they are read
    device: torch.device | str = "cpu"  # where batches of them are placed

    def __post_init__(self) -> None:
        _check_counts(len(self.paths), len(self.labels))

    def __len__(self) -> int:
        return len(self.paths)

    def part(self, start: int, stop: int) -> ImageFiles:
        return self.pick(torch.arange(len(self))[start:stop])

    def pick(self, numbers: Tensor) -> ImageFiles:
        paths = tuple(self.paths[number] for number in numbers.tolist())
        return replace(self, paths=paths, labels=self.labels[numbers])

    def shuffled(self, seed: int) -> ImageFiles:
        """The files in the order of Python's `random.Random(seed).shuffle`, which the authors use to split ImageNet."""
        order = list(range(len(self)))
        random.Random(seed).shuffle(order)
        return self.pick(torch.tensor(order))

    def to(self, device: torch.device | str) -> ImageFiles:
        """The same files, whose batches are placed on another device."""
        return replace(self, device=device)

    def fingerprint(self) -> str:
        """A hash of names (the last two parts of each path, so that the set can move), labels and size."""
        names = "\n".join("/".join(Path(path).parts[-2:]) for path in self.paths)
        return hashlib.sha256(names.encode() + self.labels.numpy().tobytes()).hexdigest() + f"@{self.size}"


class LoaderSet:
    """A user's loader: read once for its labels and hash, then used as it is. Iterating yields checked batches.

    Args:
        loader: yields (inputs, labels), or dicts that contain labels; can be iterated again.
        what: "train", "valid" or "test", for errors.
        ordered: whether it must yield the same batches every time, as for a held-out split, whose labels and
            predictions are collected in different passes.
    """

    def __init__(self, loader: Batches, what: str, *, ordered: bool) -> None:
        if not isinstance(loader, Iterable):
            raise ModebridgeError(
                f"Expected {what} to be a pair of tensors (images, labels), an ImageSet or a loader of such pairs, but "
                f"got {type(loader).__name__}; return one of these."
            )
        self.loader, self.what, self.device = loader, what, torch.device("cpu")
        self._seed: int | None = None
        self._epoch = 0
        self._numbers: Tensor | None = None
        first = first_batch(loader if isinstance(loader, Iterator) else self, what)
        self.few = take_rows(first[0], slice(0, 2))
        """Two inputs, to find shapes."""
        hashes: list[str] = []
        labels: list[Tensor] = []
        for batch in self:
            hashes.append(_hash(batch))
            if ordered and len(hashes) == 1 and hashes[0] != _hash(first):
                raise ModebridgeError(
                    f"Expected {what} to yield the same batches every time, but the first one changed; build its "
                    "loader with shuffle=False and without random augmentation."
                )
            labels.append(batch[1])
        self._batches = len(labels)
        self._hash = hashlib.sha256("".join(hashes).encode()).hexdigest()
        self.labels = torch.cat(labels)
        self.classes = int(self.labels.max()) + 1 if len(self.labels) else 0

    def __len__(self) -> int:
        return self._batches

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        go_to_epoch(self.loader, epoch)

    def __iter__(self) -> Iterator[Batch]:
        start, items = 0, iter(self.loader) if self._seed is None else seeds.drawn(self.loader, self._seed, self._epoch)
        self._epoch += 1
        for item in items:
            batch, numbers = self._prepared(item), self._numbers
            if numbers is None:
                yield batch
                continue
            stop = start + len(batch[1])
            inside = numbers[(numbers >= start) & (numbers < stop)] - start
            if len(inside):
                yield rows_of(batch, inside.to(self.device))
            if stop > int(numbers.max()):
                return
            start = stop

    def _prepared(self, item: object) -> Batch:
        """A checked batch on the device, with bytes as floats in [0, 1]."""
        if isinstance(item, tuple | list) and len(item) == 2:
            inputs, labels = item
            if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8:
                item = (inputs.float() / 255, labels)
        inputs, labels = check_batch(item, self.what)
        return map_inputs(lambda tensor: tensor.to(self.device), inputs), labels.to(self.device)

    def part(self, start: int, stop: int) -> LoaderSet:
        return self.pick(torch.arange(len(self.labels))[start:stop])

    def pick(self, numbers: Tensor) -> LoaderSet:
        picked = copy.copy(self)
        picked._numbers, picked.labels = numbers, self.labels[numbers]
        return picked

    def to(self, device: torch.device, seed: int | None = None) -> LoaderSet:
        """The same loader with batches on another device, to be iterated independently of this one.

        With a seed every epoch has its own: a shuffling loader draws from torch's global generator.
        """
        placed = copy.copy(self)
        placed.device, placed._seed, placed._epoch = device, seed, 0
        placed.loader = apart(self.loader)
        return placed

    def fingerprint(self) -> str:
        """A hash of all inputs and labels, in the order of the first pass."""
        return self._hash

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class names of the loader's data set, as in torchvision; empty if unknown."""
        names = getattr(getattr(self.loader, "dataset", None), "classes", None)
        return tuple(map(str, names)) if isinstance(names, list | tuple) and len(names) >= self.classes else ()


def _hash(batch: Batch) -> str:
    return trees.fingerprint({**flatten(batch[0]), "labels": batch[1]})


def _check_counts(images: int, labels: int) -> None:
    if images != labels:
        raise ModebridgeError(
            f"Expected as many labels as images, but got {labels} for {images}; pass one label per image."
        )
    if not images:
        raise ModebridgeError(
            "Expected a data set to have images, but got none; check the folder and data.train, .valid and .test."
        )


def find_images(folder: Path | str, classes: Sequence[str] | None = None) -> ImageFiles:
    """Images below FOLDER/CLASS/, classes (all, or those named) and files sorted, like torchvision's ImageFolder."""
    where = Path(folder)
    names = list(classes) if classes is not None else class_folders(where)
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        inside = sorted(
            os.path.join(root, file)  # noqa: PTH118 (a million files: Path objects would take seconds)
            for root, _, files in os.walk(where / name)
            for file in files
            if os.path.splitext(file)[1].lower() in _ENDINGS  # noqa: PTH122
        )
        if not inside:
            raise ModebridgeError(f"Expected images below '{where / name}', but got none; check the path.")
        paths += inside
        labels += [label] * len(inside)
    return ImageFiles(tuple(paths), torch.tensor(labels), len(names))


def class_folders(folder: Path) -> list[str]:
    """The names of the folders in a folder, in alphabetical order, without hidden ones; at least one."""
    entries = folder.iterdir() if folder.is_dir() else ()
    names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ModebridgeError(f"Expected '{folder}' to contain one folder per class, but it has none; check the path.")
    return names


def open_image(path: str) -> Picture:
    with needed("Pillow to read image files", "images"):
        from PIL import Image
    with quoting(f"'{path}' to be an image", "download it again", OSError), Image.open(path) as image:
        return image.convert("RGB")


def centre_crop(image: Picture, size: int, resize: int) -> Picture:
    """Scale the shorter side to `resize`, then crop the center."""
    from PIL import Image

    width, height = image.size
    short = min(width, height)
    w, h = int(resize * width / short), int(resize * height / short)
    left, top = round((w - size) / 2), round((h - size) / 2)
    return image.resize((w, h), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
