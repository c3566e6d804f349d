"""Images outside the training distribution: the test images of a run under corruptions, and images of other sets."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from modebridge import seeds, trees
from modebridge.batches import check_images
from modebridge.data import (
    CORRUPTIONS,
    SEVERITIES,
    ImageFiles,
    ImageSet,
    LoaderSet,
    corrupt,
    find_images,
    fitted,
    letters,
    load_digits,
    read_images,
    read_svhn,
    scrambled,
)
from modebridge.data.corruptions import parameter
from modebridge.data.sets import Images
from modebridge.errors import ModebridgeError, near
from modebridge.recipes.data import BATCH, RunData
from modebridge.recipes.recipe import FOLDER, DataConfig, Recipe, located
from modebridge.recipes.splits import NAMED, load_splits
from modebridge.recipes.user_code import split_reference

LOGITS = 1_000_000
"""Maximum number of logits kept per member, corruption and severity: 10,000 images of 100 classes, 1,000 of 1,000."""
OTHERS = 10_000
"""Maximum number of images from another set, also limited by LOGITS and PIXELS."""
PIXELS = 2**28
"""Maximum number of values of the images of another set in memory: 1 GiB."""

CORRUPTED = "corrupted"
"""The name of the corrupted test images among sets of images."""
BUILT_IN = {
    "letters": "18 capital letters of a dot-matrix font at random places, as large as the digits",
    "scrambled": "the test images with the pixels of each in a random order",
}


class ShiftedData:
    """The test images of a run under corruptions, and images of other sets in the shape that its networks expect.

    Corruptions are applied to the network's inputs, before its own normalization.
    """

    def __init__(self, recipe: Recipe, data: RunData) -> None:
        self._recipe = recipe
        self._data = data
        self._others: dict[str, Tensor] = {}

    @cached_property
    def numbers(self) -> Tensor:
        """The numbers of the test images to corrupt: all, or a fixed random subset; from a user's loader the first."""
        total = len(self._data.labels("test"))
        return _some(total, LOGITS // self._data.facts.classes, first=isinstance(self._data.splits.test, LoaderSet))

    @cached_property
    def span(self) -> tuple[float, float]:
        """The values of black and white: 0 and 1, extended to the range of the test images.

        The digits with their fixed noise exceed it, as do images that a user has normalized.
        """
        low, high = 0.0, 1.0
        test = self._data.splits.test
        if isinstance(test, ImageFiles) or (isinstance(test, ImageSet) and not test.images.is_floating_point()):
            return low, high
        for item in self._data.test():
            images, _ = check_images(item, "the test split")
            low, high = min(low, float(images.min())), max(high, float(images.max()))
        return low, high

    def key(self, images: str) -> str:
        """Identifies the corrupted images, or those of another set."""
        if images != CORRUPTED:
            return hashlib.sha256(trees.fingerprint({"images": self.other(images)}).encode()).hexdigest()
        side = min(self._shape[1:])
        values = {name: [parameter(name, severity, side) for severity in SEVERITIES] for name in CORRUPTIONS}
        return f"{self._data.scored_on} {len(self.numbers)} {self.span} {values}"

    def count(self, images: str) -> int:
        """The number of batches that `batches` yields."""
        if images != CORRUPTED:
            return math.ceil(len(self.other(images)) / BATCH)
        return len(self._data.test(self.numbers)) * len(CORRUPTIONS) * len(SEVERITIES)

    def batches(self, images: str) -> Iterator[tuple[str, Tensor]]:
        """Batches, each with the name of its table (see `tables_of`); test images are read once, then corrupted."""
        if images != CORRUPTED:
            (table,) = tables_of(images)
            yield from ((table, part) for part in torch.split(self.other(images), BATCH))
            return
        start = 0
        for item in self._data.test(self.numbers):
            clean, _ = check_images(item, "the test split")
            numbers = self.numbers[start : start + len(clean)].tolist()
            start += len(clean)
            for name in CORRUPTIONS:
                for severity in SEVERITIES:
                    yield f"{name}-{severity}", corrupt(clean, name, severity, numbers=numbers, span=self.span)

    def other(self, name: str) -> Tensor:
        """The images of another set from `known_others`, (N, C, H, W) floats on the CPU, read once."""
        if name not in self._others:
            self._others[name] = self._read(name).contiguous()
        return self._others[name]

    def _read(self, name: str) -> Tensor:
        most = min(OTHERS, max(1, LOGITS // self._data.facts.classes), max(1, PIXELS // math.prod(self._shape)))
        if name == "scrambled":
            numbers = self.numbers[:most]
            images = torch.cat([check_images(item, "the test split")[0].cpu() for item in self._data.test(numbers)])
            return scrambled(images, numbers.tolist())
        if name == "letters":
            images = letters(min(most, 1000))
        else:
            set_name, _, folder = (name, "", "") if split_reference(name) else name.partition("=")
            if set_name == "svhn":
                pixels = read_svhn(folder or os.environ.get("MODEBRIDGE_DATA", "data"))
                images = pixels[_some(len(pixels), most)]
            elif name.startswith(FOLDER):
                images = self._tensor(find_images(name.removeprefix(FOLDER), [""]), most)
            else:
                images = self._tensor(load_splits(DataConfig(set_name, 1), folder or None).test, most)
        return self._as_ours(fitted(images, self._shape))

    def _tensor(self, images: Images, most: int) -> Tensor:
        if isinstance(images, LoaderSet):
            return torch.cat([check_images(item, "other")[0] for item in images.on(torch.device("cpu"), most)])
        part = images.pick(_some(len(images), most))
        return part.images if isinstance(part, ImageSet) else read_images(part, min(self._shape[1:])).images

    def _as_ours(self, images: Tensor) -> Tensor:
        """Images in [0, 1] in the style of the data set, so that noise or scale does not give them away."""
        data = self._recipe.data
        if data.name == "digits":
            noise = torch.randn(images.shape, generator=seeds.generator(0, "others", "noise"))
            return images + data.noise * load_digits().images.std() * noise
        if data.name in NAMED:
            return images
        low, high = self.span
        return low + images * (high - low)

    @property
    def _shape(self) -> tuple[int, int, int]:
        shape = self._data.facts.image
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3):
            raise ModebridgeError(
                f"Expected images with 1 or 3 channels to corrupt, but the inputs are {shape or 'several by name'}; "
                "use the study shift with images."
            )
        return shape[0], shape[1], shape[2]


def known_others(names: Sequence[str], recipe: Recipe) -> list[str]:
    """The names of other sets, with absolute paths; if there are none, the sets that need no download.

    Names are "letters", "scrambled"; "svhn", "cifar10" and so on, with =FOLDER if their files are not in
    MODEBRIDGE_DATA or `data`; "folder:PATH" with images anywhere below PATH; "FILE.py:FUNCTION" as in a recipe. Unknown
    names and the run's own set raise an error.
    """
    if not names:
        return ["letters", "scrambled"] if recipe.data.name == "digits" else ["scrambled"]
    resolved: list[str] = []
    for name in names:
        set_name, equals, folder = name.partition("=")
        if name in BUILT_IN or name.startswith(FOLDER) or split_reference(name) is not None:
            resolved.append(located(name))
        elif set_name in ("svhn", *NAMED) and (folder or not equals):
            resolved.append(f"{set_name}={Path(folder).expanduser().resolve()}" if folder else set_name)
        else:
            raise ModebridgeError(
                f"Expected --ood to name a data set, folder:PATH or FILE.py:FUNCTION, but got '{name[:80]}'; "
                f"{near(set_name[:80], [*BUILT_IN, 'svhn', *NAMED])}"
            )
        if resolved[-1] == recipe.data.name or set_name == recipe.data.name:
            raise ModebridgeError(
                f"Expected --ood to name a set other than the run's own, but got '{name[:80]}'; choose another."
            )
    return list(dict.fromkeys(resolved))


def tables_of(images: str) -> list[str]:
    """The names of the tables of logits on some images: one per corruption and severity, such as "noise-1", or one."""
    if images == CORRUPTED:
        return [f"{name}-{severity}" for name in CORRUPTIONS for severity in SEVERITIES]
    return [file_name_of(images)]


def label_of(name: str) -> str:
    """The name of another set in tables: without its path.

    >>> label_of("svhn=/data/svhn"), label_of("folder:/data/cats")
    ('svhn', 'folder cats')
    """
    if name.startswith(FOLDER):
        return f"folder {Path(name.removeprefix(FOLDER)).name}"
    reference = split_reference(name)
    return reference[1] if reference else name.partition("=")[0]


def file_name_of(name: str) -> str:
    """The name of another set in files: its label, and a hash of its path if it has one.

    >>> file_name_of("letters"), file_name_of("folder:/data/cats")
    ('letters', 'folder-cats-4c3ca178')
    """
    label = re.sub(r"[^A-Za-z0-9_.]+", "-", label_of(name))
    return label if label == name else f"{label}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _some(total: int, most: int, *, first: bool = False) -> Tensor:
    """The numbers of at most `most` images, in order: all, a fixed random subset, or the first."""
    most = max(1, most)
    if total <= most or first:
        return torch.arange(min(total, most))
    return torch.randperm(total, generator=seeds.generator(0, "some"))[:most].sort().values
