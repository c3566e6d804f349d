"""CIFAR-10 and CIFAR-100 in their official binary layout; nothing is unpickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from modebridge.data.imageset import ImageSet
from modebridge.errors import ModebridgeError

__all__ = ["read_cifar"]

_PIXELS = 3 * 32 * 32
_TRAIN = {10: [f"data_batch_{k}.bin" for k in range(1, 6)], 100: ["train.bin"]}
_TEST = {10: ["test_batch.bin"], 100: ["test.bin"]}


def read_cifar(folder: Path | str, classes: int = 10) -> tuple[ImageSet, ImageSet]:
    """The training and the test images as uint8 (N, 3, 32, 32), in their stored order, which is already mixed.

    Args:
        folder: holds the official `.bin` files, or the folder `cifar-10-batches-bin` or `cifar-100-binary` with them.
        classes: 10 or 100; for 100 the fine labels.
    """
    if classes not in _TRAIN:
        raise ModebridgeError(f"Expected CIFAR to have 10 or 100 classes, but got {classes}; choose one of the two.")
    where = Path(folder)
    for inner in ("cifar-10-batches-bin", "cifar-100-binary"):
        if (where / inner / _TEST[classes][0]).is_file():
            where = where / inner
    return _read(where, _TRAIN[classes], classes), _read(where, _TEST[classes], classes)


def _read(folder: Path, names: list[str], classes: int) -> ImageSet:
    # A record is its label (for CIFAR-100 the coarse one, then the fine one) and the red, green and blue planes.
    before = 1 if classes == 10 else 2
    parts = []
    for name in names:
        file = folder / name
        if not file.is_file():
            raise ModebridgeError(
                f"Expected CIFAR-{classes} in '{folder}', but got no '{name}'; give the folder of the binary version."
            )
        raw = np.fromfile(file, dtype=np.uint8)
        if len(raw) == 0 or len(raw) % (before + _PIXELS):
            raise ModebridgeError(
                f"Expected '{file}' to hold records of {before + _PIXELS} bytes, but got {len(raw)} bytes; "
                "it is damaged, get it again."
            )
        parts.append(raw.reshape(-1, before + _PIXELS))
    records = np.concatenate(parts)
    images = torch.from_numpy(records[:, before:].reshape(-1, 3, 32, 32).copy())
    return ImageSet(images, torch.from_numpy(records[:, before - 1].astype(np.int64)), classes)
