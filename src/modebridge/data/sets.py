"""The paper's data sets with the authors' splits, the digits that come with the package, and folders by class."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from modebridge import seeds
from modebridge.data.images import ImageFiles, ImageSet, class_folders, find_images, read_images
from modebridge.data.loaderset import LoaderSet
from modebridge.errors import ModebridgeError, near

CLASS_NAMES = {"cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]}
"""Class names, for data sets with few classes."""

Images = ImageSet | ImageFiles | LoaderSet
Held = TypeVar("Held", ImageSet, ImageFiles)

IN_MEMORY = 2**30
"""Maximum size in bytes of decoded images to keep in memory; larger folders are streamed."""

DIGITS = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"
"""SHA-256 of the digits in the package.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, licence CC BY 4.0. These are the 1,797 images of its test set, 8x8 with 17 grey levels,
as scikit-learn ships them.
"""


@dataclass(frozen=True)
class Splits:
    """The parts of a data set: for training, for selection and calibration, and for reporting; perhaps class names."""

    train: Images
    valid: Images
    test: Images
    class_names: tuple[str, ...] = ()


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
    "cifar10": lambda folder: _last_tenth_for_validation(*read_cifar(folder, 10)),
    "cifar100": lambda folder: _last_tenth_for_validation(*read_cifar(folder, 100)),
    "tin200": _tin200,
    "in1k": _in1k,
}
"""Data sets that are read from a folder, by name."""


def load_set(name: str, folder: Path | str) -> Splits:
    """A data set of `SETS` by name, from the folder with its official files, split into three parts."""
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
    """Images in FOLDER/train/CLASS/, FOLDER/valid/CLASS/ (or val) and FOLDER/test/CLASS/, scaled to `size` pixels.

    Missing splits are cut from train. All are in a fixed random order, so that any part of them has all classes.
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


def load_digits() -> ImageSet:
    """The 1,797 digits as floats in [0, 1], (1797, 1, 8, 8), in their stored order."""
    raw = resources.files("modebridge.data").joinpath("digits.npz").read_bytes()
    if hashlib.sha256(raw).hexdigest() != DIGITS:
        raise ModebridgeError(
            "Expected the digits in the package to be as released, but their checksum differs; reinstall modebridge."
        )
    with np.load(io.BytesIO(raw), allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    return ImageSet(torch.from_numpy(images).float().div(16).unsqueeze(1), torch.from_numpy(labels).long(), classes=10)


def noisy_digits(noise: float, seed: int = 0) -> ImageSet:
    """The digits with fixed pixel noise, in a fixed random order.

    Clean digits are too easy: a few confident errors determine the NLL. The noise, whose standard deviation is relative
    to that of the images, is part of the data set, the same in every epoch and run.
    """
    clean = load_digits()
    draw = torch.randn(clean.images.shape, generator=seeds.generator(seed, "digits", "noise"))
    return ImageSet(clean.images + noise * clean.images.std() * draw, clean.labels, 10).shuffled(seed)


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


_PIXELS = 3 * 32 * 32
_FOLDERS = {10: ("cifar-10-batches-bin", "cifar-10-batches-py"), 100: ("cifar-100-binary", "cifar-100-python")}
_NAMES = {10: [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"], 100: ["train", "test"]}
_COUNTS = (50_000, 10_000)
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

Part = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def read_cifar(folder: Path | str, classes: int = 10) -> tuple[ImageSet, ImageSet]:
    """The training and test images as uint8 (N, 3, 32, 32), in their stored order, which is already shuffled.

    The folder holds the official files, binary or python, or the folder that their archive unpacks to. There are 10
    classes, or 100: the fine labels.
    """
    if classes not in _FOLDERS:
        raise ModebridgeError(f"Expected CIFAR to have 10 or 100 classes, but got {classes}; choose one of the two.")
    *first, last = _NAMES[classes]
    for where in (Path(folder), *(Path(folder) / inner for inner in _FOLDERS[classes])):
        for ending in (".bin", ""):
            if (where / f"{last}{ending}").is_file():
                train = _cifar_set(where, first, ending, classes, _COUNTS[0])
                return train, _cifar_set(where, [last], ending, classes, _COUNTS[1])
    raise ModebridgeError(
        f"Expected CIFAR-{classes} in '{folder}', but got neither '{last}.bin' nor '{last}'; "
        f"pass the folder that contains {' or '.join(_FOLDERS[classes])}."
    )


def _cifar_set(folder: Path, names: Sequence[str], ending: str, classes: int, count: int) -> ImageSet:
    read = _binary if ending else _python
    images, labels = map(np.concatenate, zip(*(read(folder / f"{n}{ending}", classes) for n in names), strict=True))
    if len(images) != count:
        raise ModebridgeError(
            f"Expected {', '.join(names)} in '{folder}' to hold {count:,} images, but got {len(images):,}; download "
            "them again."
        )
    return ImageSet(torch.from_numpy(images.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels), classes)


def _binary(file: Path, classes: int) -> Part:
    # A record is its label (for CIFAR-100 the coarse one, then the fine one) and the red, green and blue planes.
    label_bytes = 1 if classes == 10 else 2
    raw = np.frombuffer(_content(file), dtype=np.uint8)
    if len(raw) == 0 or len(raw) % (label_bytes + _PIXELS):
        raise ModebridgeError(
            f"Expected '{file}' to hold records of {label_bytes + _PIXELS} bytes, but got {len(raw)} bytes; "
            "it is damaged, download it again."
        )
    records = raw.reshape(-1, label_bytes + _PIXELS)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _python(file: Path, classes: int) -> Part:
    raw = _content(file)
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != _MD5[file.name]:
        raise ModebridgeError(
            f"Expected '{file}' to be the official file, but its checksum differs; download it again."
        )
    batch = _Plain(io.BytesIO(raw), encoding="bytes").load()
    return np.asarray(batch[b"data"]), np.asarray(batch[b"labels" if classes == 10 else b"fine_labels"], dtype=np.int64)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModebridgeError(
            f"Expected '{file}' to be readable, but got '{error.strerror}'; download the whole archive again."
        ) from error


class _Plain(pickle.Unpickler):
    """Unpickles dictionaries, lists, numbers, text and numeric arrays; refuses anything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")
        allowed = ("numpy.dtype", "numpy.ndarray", "numpy._core.multiarray._reconstruct", "_codecs.encode")
        if f"{module}.{name}" not in allowed:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not plain data")
        return super().find_class(module, name)
