"""The paper's data sets with the authors' splits, the digits that come with the package, and folders by class."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from modebridge import seeds
from modebridge.data.images import ImageFiles, ImageSet, LoaderSet, class_folders, find_images
from modebridge.data.loaders import read_images
from modebridge.errors import ModebridgeError, near

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""Class names."""

NAMED: dict[str, tuple[int, tuple[int, int, int], dict[str, int]]] = {
    "digits": (10, (1, 8, 8), {"train": 599, "valid": 359, "test": 839}),
    "cifar10": (10, (3, 32, 32), {"train": 45_000, "valid": 5_000, "test": 10_000}),
    "cifar100": (100, (3, 32, 32), {"train": 45_000, "valid": 5_000, "test": 10_000}),
    "tin200": (200, (3, 64, 64), {"train": 90_000, "valid": 10_000, "test": 10_000}),
    "in1k": (1000, (3, 224, 224), {"train": 1_231_167, "valid": 50_000, "test": 50_000}),
}
"""Named sets: number of classes, image shape, and images by split."""

Images = ImageSet | ImageFiles | LoaderSet
Held = TypeVar("Held", ImageSet, ImageFiles)

IN_MEMORY = 2**30
"""Maximum size in bytes of decoded images to keep in memory; larger folders are streamed."""


@dataclass(frozen=True)
class Splits:
    """The parts of a data set: for training, for selection and calibration, and for reporting; perhaps class names."""

    train: Images
    valid: Images
    test: Images
    class_names: tuple[str, ...] = ()
    cut: bool = False  # whether the images for validation were split off those that the user gave for training


def _last_tenth_for_validation(train: ImageSet, test: ImageSet, class_names: tuple[str, ...] = ()) -> Splits:
    cut = len(train) * 9 // 10
    return Splits(train.part(0, cut), train.part(cut, len(train)), test, class_names)


def _tin200(folder: Path) -> Splits:
    train, test = (read_images(files, 64) for files in tiny_imagenet(folder))
    # Stored by class; the authors' order is unknown, so ours is a seeded one.
    return _last_tenth_for_validation(train.shuffled(0), test)


def _in1k(folder: Path) -> Splits:
    classes = class_folders(folder / "train")
    train, test = (find_images(folder / part, classes) for part in ("train", "val"))
    train = train.shuffled(42)
    # 1,231,167 and 50,000 of ImageNet's 1,281,167; the same fraction of a smaller folder.
    held = 50_000 if len(train) > 500_000 else max(1, len(train) // 25)
    return Splits(train.part(0, len(train) - held), train.part(len(train) - held, len(train)), test)


SETS: dict[str, Callable[[Path], Splits]] = {
    "cifar10": lambda folder: _last_tenth_for_validation(*read_cifar(folder, 10), CIFAR10),
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
    """Images in a fixed random order, split: one tenth for each of `parts` further parts."""
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
    classes = class_folders(folder / "train")
    train = find_images(folder / "train", classes)
    given: dict[str, ImageFiles] = {}
    for split, names in (("valid", ("valid", "val")), ("test", ("test",))):
        place = next((folder / name for name in names if (folder / name).is_dir()), None)
        if place is not None:
            given[split] = find_images(place, classes).shuffled(0)
    rest, *parts = cut_off(train, 2 - len(given))
    missing = [split for split in ("valid", "test") if split not in given]
    files = {"train": rest, **given, **dict(zip(missing, parts, strict=True))}
    fits = sum(map(len, files.values())) * 3 * size * size <= IN_MEMORY
    splits = {split: read_images(part, size) if fits else replace(part, size=size) for split, part in files.items()}
    return Splits(**splits, class_names=tuple(classes), cut="valid" in missing)


def load_digits() -> ImageSet:
    """The 1,797 digits as floats in [0, 1], (1797, 1, 8, 8), in their stored order.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository,
    1998, https://doi.org/10.24432/C50P49, license CC BY 4.0. These are the images of its test set, 8x8 with 17 gray
    levels, as scikit-learn ships them.
    """
    with resources.files("modebridge.data").joinpath("digits.npz").open("rb") as raw, np.load(raw) as file:
        images, labels = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"])
    return ImageSet(images.float().div(16).unsqueeze(1), labels.long(), classes=10)


def noisy_digits(noise: float) -> ImageSet:
    """The digits with fixed pixel noise, in a fixed random order.

    Clean digits are too easy: a few confident errors determine the NLL. The noise, whose standard deviation is relative
    to that of the images, is part of the data set, the same in every epoch and run.
    """
    clean = load_digits()
    draw = torch.randn(clean.images.shape, generator=seeds.generator(0, "digits", "noise"))
    return ImageSet(clean.images + noise * clean.images.std() * draw, clean.labels, 10).shuffled(0)


def tiny_imagenet(folder: Path | str) -> tuple[ImageFiles, ImageFiles]:
    """The files of Tiny ImageNet: training by class, and the official validation images, used as the test set."""
    where = Path(folder)
    where = where / "tiny-imagenet-200" if (where / "tiny-imagenet-200").is_dir() else where
    names, annotations = where / "wnids.txt", where / "val" / "val_annotations.txt"
    for file in (names, annotations):
        if not file.is_file():
            raise ModebridgeError(
                f"Expected Tiny ImageNet in '{folder}', but got no '{file.name}'; pass tiny-imagenet-200 (--data DIR)."
            )
    classes = sorted(names.read_text(encoding="utf-8").split())
    number = {name: label for label, name in enumerate(classes)}
    rows = [line.split("\t")[:2] for line in annotations.read_text(encoding="utf-8").splitlines() if line]
    paths = tuple(str(where / "val" / "images" / file) for file, _ in rows)
    labels = torch.tensor([number[name] for _, name in rows])
    return find_images(where / "train", classes), ImageFiles(paths, labels, len(classes))


_CIFAR = {
    10: (["cifar-10-batches-bin", "cifar-10-batches-py"], [f"data_batch_{k}" for k in range(1, 6)], "test_batch"),
    100: (["cifar-100-binary", "cifar-100-python"], ["train"], "test"),
}
"""By number of classes: the folders that the archives unpack to, the training files, and the test file."""
_COUNTS = (50_000, 10_000)


def read_cifar(folder: Path | str, classes: int = 10) -> tuple[ImageSet, ImageSet]:
    """The training and test images as uint8 (N, 3, 32, 32), in their stored order, which is already shuffled.

    The folder holds the official files, binary or python, or the folder that their archive unpacks to. There are 10
    classes, or 100: the fine labels.
    """
    if classes not in _CIFAR:
        raise ModebridgeError(f"Expected CIFAR to have 10 or 100 classes, but got {classes}; choose one of the two.")
    folders, train, test = _CIFAR[classes]
    for where in (Path(folder), *(Path(folder) / inner for inner in folders)):
        for ending in (".bin", ""):
            if (where / f"{test}{ending}").is_file():
                files = ([where / f"{name}{ending}" for name in names] for names in (train, [test]))
                first, last = (_cifar_set(some, classes, count) for some, count in zip(files, _COUNTS, strict=True))
                return first, last
    raise ModebridgeError(
        f"Expected CIFAR-{classes} in '{folder}', but got neither '{test}.bin' nor '{test}'; download it from "
        f"https://www.cs.toronto.edu/~kriz/cifar.html and pass the folder of {' or '.join(folders)} (--data DIR)."
    )


def _cifar_set(files: Sequence[Path], classes: int, count: int) -> ImageSet:
    try:
        parts = [(_binary if file.suffix else _python)(file.read_bytes(), classes) for file in files]
    except (OSError, ValueError, TypeError, KeyError, EOFError, pickle.UnpicklingError) as error:
        raise ModebridgeError(
            f"Expected '{files[0].parent}' to hold the official files of CIFAR-{classes}, but got '{error}'; download "
            "them again."
        ) from error
    images, labels = map(np.concatenate, zip(*parts, strict=True))
    if len(images) != count:
        raise ModebridgeError(
            f"Expected '{files[0].parent}' to hold {count:,} images in {', '.join(file.name for file in files)}, but "
            f"got {len(images):,}; download them again."
        )
    return ImageSet(torch.from_numpy(images.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels), classes)


def _binary(raw: bytes, classes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    # A record is its label (for CIFAR-100 the coarse one, then the fine one) and the red, green and blue planes.
    label_bytes = 1 if classes == 10 else 2
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, label_bytes + 3 * 32 * 32)
    return records[:, label_bytes:], records[:, label_bytes - 1].astype(np.int64)


def _python(raw: bytes, classes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    batch = _Plain(io.BytesIO(raw), encoding="bytes").load()
    return np.asarray(batch[b"data"]), np.asarray(batch[b"labels" if classes == 10 else b"fine_labels"], dtype=np.int64)


class _Plain(pickle.Unpickler):
    """Unpickles dictionaries, lists, numbers, text and numeric arrays; refuses anything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")
        allowed = ("numpy.dtype", "numpy.ndarray", "numpy._core.multiarray._reconstruct", "_codecs.encode")
        if f"{module}.{name}" not in allowed:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not plain data")
        return super().find_class(module, name)
