"""Images and labels: in memory (`ImageSet`) or as files (`ImageFiles`), which are decoded once and cached."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from modebridge import seeds
from modebridge.errors import ModebridgeError
from modebridge.files.atomic import read_tensor_file, tensor_file, write_file

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_ENDINGS = {".jpeg", ".jpg", ".png", ".ppm", ".bmp", ".webp"}

CHUNK = 256
"""Images that a worker decodes at a time."""

VARIABLE = "MODEBRIDGE_CACHE"
"""Environment variable with the cache folder to use instead of ~/.cache/modebridge; empty turns caching off."""

MANY = 2000
"""Smaller sets are decoded faster than a worker starts, and are not worth caching."""


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
        """The same set on another device."""
        return ImageSet(self.images.to(device), self.labels.to(device), self.classes)


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
        _check_counts(len(self.paths), len(self.labels))

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


def _check_counts(images: int, labels: int) -> None:
    if images != labels:
        raise ModebridgeError(
            f"Expected as many labels as images, but got {labels} for {images}; pass one label per image."
        )
    if not images:
        raise ModebridgeError("Expected a data set to have images, but got none; check the folder and the split.")


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


def centre_crop(image: Picture, size: int, resize: int) -> Picture:
    """Scale the shorter side to `resize`, then crop the centre."""
    from PIL import Image

    width, height = image.size
    short = min(width, height)
    w, h = int(resize * width / short), int(resize * height / short)
    left, top = round((w - size) / 2), round((h - size) / 2)
    return image.resize((w, h), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def read_images(files: ImageFiles, size: int = 0) -> ImageSet:
    """All images in memory, as uint8 (N, 3, H, W).

    They are decoded on all cores and kept in the cache folder. Files with other names, sizes or dates get another
    entry. The shorter side is scaled to `size` pixels, and the centre is cropped; 0 if all have the same size already.
    """
    entry = _entry(files, size) if len(files) >= MANY else None
    if entry is not None:
        with suppress(ModebridgeError):  # missing or damaged: it is written again
            return ImageSet(read_tensor_file(entry)[0]["images"], files.labels, files.classes)
    images = _decode(files, size)
    if entry is not None and shutil.disk_usage(entry.parent).free >= 2 * images.nbytes:
        with suppress(ModebridgeError):  # a cache that cannot be written does not matter
            write_file(entry, tensor_file({"images": images}, {}))
    return ImageSet(images, files.labels, files.classes)


def _cache_folder() -> Path | None:
    """The folder for decoded images, created if needed; None if caching is off or it is not writable."""
    given = os.environ.get(VARIABLE)
    if given == "":
        return None
    try:
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "modebridge"
        folder = (Path(given) if given else user) / "images"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # read-only, full, or a user without a home
        return None
    return folder if os.access(folder, os.W_OK) else None


def _entry(files: ImageFiles, size: int) -> Path | None:
    """The cache file for exactly these files."""
    folder = _cache_folder()
    if folder is None:
        return None
    stats = [os.stat(path) for path in files.paths]  # noqa: PTH116 (called a hundred thousand times)
    content = [f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in zip(files.paths, stats, strict=True)]
    key = hashlib.sha256("\n".join((*content, f"size {size}")).encode()).hexdigest()
    return folder / f"{key[:32]}.safetensors"


def _decode(files: ImageFiles, size: int) -> Tensor:
    width, height = (size, size) if size else open_image(files.paths[0]).size
    chunks = [files.paths[start : start + CHUNK] for start in range(0, len(files), CHUNK)]
    # Processes: on images this small the GIL makes several threads slower than one.
    workers = (os.cpu_count() or 1) if len(files) >= MANY else 0
    # Without a batch size, each worker applies `collate_fn` to one item of the list.
    decoded: DataLoader[Tensor] = DataLoader(
        chunks,  # type: ignore[arg-type]  # any sequence will do
        batch_size=None,
        num_workers=workers,
        collate_fn=partial(_decode_chunk, width=width, height=height, size=size),
    )
    images = torch.empty((len(files), 3, height, width), dtype=torch.uint8)
    for place, chunk in zip(torch.split(images, CHUNK), decoded, strict=True):
        place.copy_(chunk)
    return images


def _decode_chunk(paths: Sequence[str], width: int, height: int, size: int) -> Tensor:
    images = np.empty((len(paths), 3, height, width), dtype=np.uint8)
    for place, path in zip(images, paths, strict=True):
        opened = open_image(path)
        image = np.asarray(centre_crop(opened, size, size) if size else opened)
        if image.shape != (height, width, 3):
            raise ModebridgeError(
                f"Expected images of {width} x {height}, but '{path}' is {image.shape[1]} x {image.shape[0]}; "
                "stream data sets of mixed sizes."
            )
        place[...] = image.transpose(2, 0, 1)
    return torch.from_numpy(images)
