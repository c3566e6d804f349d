"""Image files as one tensor, decoded once: a second start reads them in seconds."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from modebridge.caches import cache_folder
from modebridge.data.image_files import ImageFiles, open_image
from modebridge.data.imageset import ImageSet
from modebridge.data.stream import centre_crop
from modebridge.errors import ModebridgeError

__all__ = ["read_images"]

CHUNK = 256
"""Images that a worker decodes at a time."""

MANY = 2000
"""Sets of fewer images are decoded sooner than a worker starts, and are not worth a cache."""


def read_images(files: ImageFiles, size: int = 0) -> ImageSet:
    """All images in memory, as uint8 (N, 3, H, W).

    They are decoded on all cores and kept decoded in the user's cache directory (`caches.cache_folder`), in one file
    that is mapped into memory and checked by its hash. Files of other names, sizes or dates are another entry.

    Args:
        files: the images.
        size: pixels of a side: the shorter side of each image is scaled to it, and the middle cut out; 0 for images
            that are all of one size already.
    """
    kept = _entry(files, size) if len(files) >= MANY else None
    images = _load(kept) if kept is not None else None
    if images is None:
        images = _decode(files, size)
        if kept is not None:
            _save(kept, images)
    return ImageSet(images, files.labels, files.classes)


class _Chunks(Dataset[Tensor]):
    """Runs of images, each decoded as one tensor."""

    def __init__(self, paths: tuple[str, ...], shape: tuple[int, int], size: int) -> None:
        self._paths = paths
        self._shape = shape
        self._size = size

    def __len__(self) -> int:
        return -(-len(self._paths) // CHUNK)

    def __getitem__(self, number: int) -> Tensor:
        width, height = self._shape
        paths = self._paths[number * CHUNK : (number + 1) * CHUNK]
        images = np.empty((len(paths), 3, height, width), dtype=np.uint8)
        for place, path in zip(images, paths, strict=True):
            opened = open_image(path)
            image = np.asarray(centre_crop(opened, self._size, self._size) if self._size else opened)
            if image.shape != (height, width, 3):
                raise ModebridgeError(
                    f"Expected images of {width} x {height}, but '{path}' has {image.shape[1]} x {image.shape[0]}; "
                    "stream sets of mixed sizes."
                )
            place[...] = image.transpose(2, 0, 1)
        return torch.from_numpy(images)


def _decode(files: ImageFiles, size: int) -> Tensor:
    chunks = _Chunks(files.paths, (size, size) if size else open_image(files.paths[0]).size, size)
    # Processes: on images this small the interpreter's lock makes threads slower than one.
    workers = (os.cpu_count() or 1) if len(files) >= MANY else 0
    images: Tensor | None = None
    begin = 0
    for chunk in DataLoader(chunks, batch_size=None, num_workers=workers):
        if images is None:
            images = torch.empty((len(files), *chunk.shape[1:]), dtype=torch.uint8)
        images[begin : begin + len(chunk)] = chunk
        begin += len(chunk)
    assert images is not None
    return images


def _entry(files: ImageFiles, size: int) -> Path | None:
    """Where the decoded images of these very files are kept."""
    folder = cache_folder("images")
    if folder is None:
        return None
    marks = [os.stat(path) for path in files.paths]  # noqa: PTH116 (a hundred thousand of them)
    content = "\n".join(f"{mark.st_size} {mark.st_mtime_ns}" for mark in marks)
    scaled = [f"size {size}"] if size else []
    key = hashlib.sha256("\n".join((*files.paths, content, *scaled)).encode()).hexdigest()
    return folder / f"{key[:32]}.safetensors"


def _hash(images: Tensor) -> str:
    return hashlib.sha256(images.numpy().data).hexdigest()


def _load(kept: Path) -> Tensor | None:
    """The images of an entry; None where there is none, or a damaged one."""
    try:
        with safetensors.safe_open(kept, framework="pt") as file:
            images: Tensor = file.get_tensor("images")
            expected = (file.metadata() or {}).get("hash")
    except (OSError, ValueError, safetensors.SafetensorError):
        return None
    if images.dtype != torch.uint8 or _hash(images) != expected:
        return None
    return images


def _save(kept: Path, images: Tensor) -> None:
    """Keep the images if there is room; nobody is worse off without."""
    scratch = kept.with_suffix(f".{os.getpid()}.new")
    try:
        if shutil.disk_usage(kept.parent).free < 2 * images.nbytes:
            return
        save_file({"images": images}, scratch, {"hash": _hash(images)})
        scratch.replace(kept)
    except (OSError, safetensors.SafetensorError):
        scratch.unlink(missing_ok=True)
