"""CIFAR-10 and CIFAR-100 in their official binary and python layouts."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from modebridge.data.imageset import ImageSet
from modebridge.errors import ModebridgeError

__all__ = ["read_cifar"]

_PIXELS = 3 * 32 * 32
_TRAIN = {10: [f"data_batch_{k}" for k in range(1, 6)], 100: ["train"]}
_TEST = {10: ["test_batch"], 100: ["test"]}
_RECORDS = {10: (10_000, 10_000), 100: (50_000, 10_000)}
"""Number of images in each file of the training and of the test set."""
_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
"""Checksums published with the official python files; verified before anything is unpickled."""
_FOLDERS = {
    10: ("cifar-10-batches-bin", "cifar-10-batches-py"),
    100: ("cifar-100-binary", "cifar-100-python"),
}


def read_cifar(folder: Path | str, classes: int = 10) -> tuple[ImageSet, ImageSet]:
    """The training and test images as uint8 (N, 3, 32, 32), in their stored order, which is already shuffled.

    Args:
        folder: the folder with the official files, or with the folder that their archive unpacks to. If both layouts
            exist, the binary one is used. A file of the python layout is unpickled only if its checksum is the official
            one, and even then only numbers, text and plain arrays are allowed.
        classes: 10 or 100; for 100 the fine labels are used.
    """
    if classes not in _TRAIN:
        raise ModebridgeError(f"Expected CIFAR to have 10 or 100 classes, but got {classes}; choose one of the two.")
    last = _TEST[classes][0]
    for where in (Path(folder), *(Path(folder) / inner for inner in _FOLDERS[classes])):
        for ending in (".bin", ""):
            if (where / f"{last}{ending}").is_file():
                train, test = _RECORDS[classes]
                return (
                    _set(where, _TRAIN[classes], ending, classes, train),
                    _set(where, _TEST[classes], ending, classes, test),
                )
    raise ModebridgeError(
        f"Expected CIFAR-{classes} in '{folder}', but got neither '{last}.bin' nor '{last}'; "
        f"pass the folder that contains {' or '.join(_FOLDERS[classes])}."
    )


def _set(folder: Path, names: list[str], ending: str, classes: int, records: int) -> ImageSet:
    parts = []
    for name in names:
        file = folder / f"{name}{ending}"
        if not file.is_file():
            raise ModebridgeError(f"Expected '{file}' to exist, but it does not; download the whole archive again.")
        images, labels = _binary(file, classes) if ending else _python(file, classes)
        if len(images) != records:
            raise ModebridgeError(
                f"Expected '{folder / name}' to hold {records:,} images, but got {len(images):,}; download it again."
            )
        parts.append((images, labels))
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ImageSet(torch.from_numpy(images.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels), classes)


Part = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def _binary(file: Path, classes: int) -> Part:
    # A record is its label (for CIFAR-100 the coarse one, then the fine one) and the red, green and blue planes.
    label_bytes = 1 if classes == 10 else 2
    raw = np.fromfile(file, dtype=np.uint8)
    if len(raw) == 0 or len(raw) % (label_bytes + _PIXELS):
        raise ModebridgeError(
            f"Expected '{file}' to hold records of {label_bytes + _PIXELS} bytes, but got {len(raw)} bytes; "
            "it is damaged, download it again."
        )
    records = raw.reshape(-1, label_bytes + _PIXELS)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _python(file: Path, classes: int) -> Part:
    raw = file.read_bytes()
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != _MD5[file.name]:
        raise ModebridgeError(
            f"Expected '{file}' to be the official file, but its checksum differs; download it again."
        )
    try:
        batch = _Plain(io.BytesIO(raw), encoding="bytes").load()
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images, labels = np.asarray(named["data"]), np.asarray(named["labels" if classes == 10 else "fine_labels"])
        if images.dtype != np.uint8 or images.shape != (len(labels), _PIXELS):
            raise ValueError(f"data of {images.dtype} {images.shape} for {len(labels)} labels")
    except Exception as error:  # a bad pickle can raise anything
        raise ModebridgeError(
            f"Expected '{file}' to be a batch of CIFAR-{classes}, but got '{error}'; download it again."
        ) from error
    return images, labels.astype(np.int64)


class _Plain(pickle.Unpickler):
    """Unpickles dictionaries, lists, numbers, text and numeric arrays; refuses anything that could run code."""

    _ALLOWED = frozenset(
        {
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not plain data")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
