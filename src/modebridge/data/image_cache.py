"""Image files as one tensor, decoded once: the next start loads them in seconds."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader

from modebridge.caches import cache_folder
from modebridge.data.image_files import ImageFiles, open_image
from modebridge.data.imageset import ImageSet
from modebridge.data.stream import centre_crop
from modebridge.errors import ModebridgeError

__all__ = ["read_images"]

CHUNK = 256
"""Images that a worker decodes at a time."""

MANY = 2000
"""Smaller sets are decoded faster than a worker starts, and are not worth caching."""


def read_images(files: ImageFiles, size: int = 0) -> ImageSet:
    """All images in memory, as uint8 (N, 3, H, W).

    They are decoded on all cores and kept in the user's cache directory (`caches.cache_folder`), in one file that is
    memory-mapped and verified by its hash. Files with other names, sizes or dates get another entry.

    Args:
        files: the images.
        size: side in pixels: the shorter side of each image is scaled to it, and the centre is cropped; 0 if all images
            already have the same size.
    """
    entry = _entry(files, size) if len(files) >= MANY else None
    images = _load(entry) if entry is not None else None
    if images is None:
        images = _decode(files, size)
        if entry is not None:
            _save(entry, images)
    return ImageSet(images, files.labels, files.classes)


def _decode(files: ImageFiles, size: int) -> Tensor:
    width, height = (size, size) if size else open_image(files.paths[0]).size
    chunks = [files.paths[start : start + CHUNK] for start in range(0, len(files), CHUNK)]
    # Processes: on images this small the GIL makes several threads slower than one.
    workers = (os.cpu_count() or 1) if len(files) >= MANY else 0
    decode = partial(_decode_chunk, width=width, height=height, size=size)
    # Without a batch size, each worker applies `collate_fn` to one item of the list.
    decoded: DataLoader[Tensor] = DataLoader(
        chunks,  # type: ignore[arg-type]  # any sequence will do
        batch_size=None,
        num_workers=workers,
        collate_fn=decode,
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


def _entry(files: ImageFiles, size: int) -> Path | None:
    """The cache file for exactly these files."""
    folder = cache_folder("images")
    if folder is None:
        return None
    stats = [os.stat(path) for path in files.paths]  # noqa: PTH116 (called a hundred thousand times)
    content = "\n".join(f"{stat.st_size} {stat.st_mtime_ns}" for stat in stats)
    scaled = [f"size {size}"] if size else []
    key = hashlib.sha256("\n".join((*files.paths, content, *scaled)).encode()).hexdigest()
    return folder / f"{key[:32]}.safetensors"


def _hash(images: Tensor) -> str:
    return hashlib.sha256(images.numpy().data).hexdigest()


def _load(entry: Path) -> Tensor | None:
    """The images of a cache file; None if it is missing or damaged."""
    try:
        with safetensors.safe_open(entry, framework="pt") as file:
            images: Tensor = file.get_tensor("images")
            expected = (file.metadata() or {}).get("hash")
    except (OSError, ValueError, safetensors.SafetensorError):
        return None
    if images.dtype != torch.uint8 or _hash(images) != expected:
        return None
    return images


def _save(entry: Path, images: Tensor) -> None:
    """Cache the images if there is enough disk space; a failure does not matter."""
    scratch = entry.with_suffix(f".{os.getpid()}.new")
    try:
        if shutil.disk_usage(entry.parent).free < 2 * images.nbytes:
            return
        save_file({"images": images}, scratch, {"hash": _hash(images)})
        scratch.replace(entry)
    except (OSError, safetensors.SafetensorError):
        scratch.unlink(missing_ok=True)
