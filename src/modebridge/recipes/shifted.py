"""Images that networks were not trained for: the test images of a run under corruptions, and images of other sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from modebridge import seeds, trees
from modebridge.data import find_images, load_digits, read_images
from modebridge.data.sets import NAMED
from modebridge.errors import ModebridgeError, near
from modebridge.recipes.data import BATCH, Feed, RunData
from modebridge.recipes.recipe import DataConfig, Recipe
from modebridge.recipes.user_code import FOLDER, located

IMAGES, PIXELS, LOGITS = 10_000, 2**28, 10**6
"""Maximum number of images of a set, of their values in memory (1 GiB), and of logits kept per member and table."""

STRENGTHS = {
    "noise": (0.04, 0.08, 0.12, 0.15, 0.18),  # standard deviation
    "impulses": (0.01, 0.02, 0.05, 0.08, 0.14),  # share of black and white values
    "blur": (0.5, 0.75, 1.0, 1.25, 1.5),  # standard deviation in pixels, or in 64ths of larger images
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),  # added
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),  # what is left of it
    "pixelate": (0.9, 0.8, 0.7, 0.45, 0.3),  # pixels left on a side
}
"""Corruptions by severity, 1 to 5: those of Tiny ImageNet-C by D. Hendrycks and T. Dietterich, "Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations" (ICLR 2019), but brightness is added to all channels, and
pixelate ends stronger, so that digits of 8 pixels change more with each severity."""
SEVERITIES = (1, 2, 3, 4, 5)

CORRUPTED = "corrupted"
"""The name of the corrupted test images among sets of images."""
BUILT_IN = ("scrambled", "inverted")
"""Sets that need no download: the test images with the pixels of each in a random order, and their negatives."""


def corrupt(images: Tensor, corruption: str, severity: int, seed: int = 0) -> Tensor:
    """Corrupt a batch of images.

    Args:
        images: (N, C, H, W) floats in [0, 1].
        corruption: a key of `STRENGTHS`.
        severity: 1 to 5.
        seed: seed of noise, which is the same at every severity.

    >>> corrupt(torch.tensor([[[[0.0, 1.0]]]]), "contrast", 3)
    tensor([[[[0.4000, 0.6000]]]])
    """
    value, generator = STRENGTHS[corruption][severity - 1], seeds.generator(seed, corruption)
    if corruption == "noise":
        images = images + value * torch.randn(images.shape, generator=generator).to(images)
    elif corruption == "impulses":
        drawn = torch.rand(images.shape, generator=generator).to(images)
        images = images.where(drawn >= value, (drawn < value / 2).to(images))
    elif corruption == "blur":
        sigma = value * max(1.0, min(images.shape[2:]) / 64)
        radius = math.ceil(4 * sigma)
        weights = torch.softmax(-(torch.arange(-radius, radius + 1).double() / sigma).square() / 2, dim=0).to(images)
        padded = F.pad(images, 4 * [radius], mode="replicate")
        images = (padded.unfold(2, len(weights), 1) @ weights).unfold(3, len(weights), 1) @ weights
    elif corruption == "brightness":
        images = images + value
    elif corruption == "contrast":
        mean = images.mean(dim=(2, 3), keepdim=True)
        images = mean + value * (images - mean)
    else:
        sides = images.shape[2:]
        small = F.interpolate(images, size=[max(1, int(value * side)) for side in sides], mode="area")
        images = F.interpolate(small, size=sides, mode="nearest")
    return images.clamp(0, 1)


def _fitted(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images (N, C, H, W) of another shape: repeated or averaged to gray, resized bilinearly."""
    images = images.mean(dim=1, keepdim=True) if shape[0] == 1 else images.expand(-1, shape[0], -1, -1)
    return F.interpolate(images, size=list(shape[1:]), mode="bilinear", antialias=True)


class ShiftedData:
    """The test images of a run under corruptions, and images of other sets in the shape that its networks expect.

    Corruptions are applied to the network's inputs, before its own normalization.
    """

    def __init__(self, recipe: Recipe, data: RunData) -> None:
        shape = data.facts.image
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3):
            raise ModebridgeError(
                f"Expected images with 1 or 3 channels to corrupt, but the inputs are {shape or 'several by name'}; "
                "use the study shift with images."
            )
        self._recipe, self._data, self._shape = recipe, data, shape
        self.images = cache(lambda name: self._images(name).contiguous())
        """The test images before they are corrupted, or those of another set: (N, C, H, W) floats, read once."""
        self.key = cache(lambda name: f"{trees.fingerprint({'images': self.images(name)})} {STRENGTHS}")
        """Identifies the corrupted test images, or those of another set."""
        self.numbers = self._some(len(data.labels("test")))
        """The numbers of the test images to corrupt: all, or a fixed random subset."""

    @cached_property
    def span(self) -> tuple[float, float]:
        """The values of black and white: 0 and 1, or those of the test images if they go beyond, as noisy digits do."""
        clean = self.images(CORRUPTED)
        return min(0.0, float(clean.min())), max(1.0, float(clean.max()))

    def batches(self, name: str, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Batches of the corrupted test images or of another set, each with the name of its table, see `tables_of`."""
        low, high = self.span
        for number, part in enumerate(torch.split(self.images(name).to(device), BATCH)):
            if name != CORRUPTED:
                yield label_of(name), part
                continue
            for corruption, severity in product(STRENGTHS, SEVERITIES):
                shifted = corrupt((part - low) / (high - low), corruption, severity, seed=number)
                yield f"{corruption}-{severity}", low + shifted * (high - low)

    def _images(self, name: str) -> Tensor:
        if name == CORRUPTED:
            return _joined(self._data.test(self.numbers))
        low, high = self.span
        if name == "inverted":
            return high + low - self.images(CORRUPTED)
        if name == "scrambled":
            flat = self.images(CORRUPTED).flatten(2)
            draw = torch.rand(len(flat), 1, flat.shape[2], generator=seeds.generator(0, "scrambled"))
            return flat.gather(2, draw.argsort(dim=2).expand_as(flat)).view(-1, *self._shape)
        if name.startswith(FOLDER):
            files = find_images(name.removeprefix(FOLDER), [""])
            images = read_images(files.pick(self._some(len(files))), min(self._shape[1:])).images / 255
        else:
            other = RunData(replace(self._recipe, data=DataConfig(name, BATCH)), folder=self._data.folder)
            images = _joined(other.test(self._some(len(other.labels("test")))))
        images = _fitted(images, self._shape)
        # In the style of the data set, so that neither noise nor scale gives them away.
        if self._recipe.data.name == "digits":
            noise = torch.randn(images.shape, generator=seeds.generator(0, "others", "noise"))
            return images + self._recipe.data.noise * load_digits().images.std() * noise
        return low + images * (high - low)

    def _some(self, total: int) -> Tensor:
        """The numbers of as many images as are used of a set, in order: all, or a fixed random subset."""
        most = max(1, min(IMAGES, PIXELS // math.prod(self._shape), LOGITS // self._data.facts.classes))
        order = torch.randperm(total, generator=seeds.generator(0, "some"))
        return order[:most].sort().values


def _joined(feed: Feed) -> Tensor:
    return torch.cat([images.cpu() for images, _ in feed])  # type: ignore[union-attr]  # ShiftedData has checked


def known_others(names: Sequence[str], recipe: Recipe) -> list[str]:
    """The names of other sets, with absolute paths; if there are none, the sets that need no download.

    Names are "scrambled", "inverted"; "cifar10" and so on, whose files are where the run's own data is; "folder:PATH"
    with images anywhere below PATH. Unknown names, the run's own set, and two sets of one name raise an error.
    """
    known = [*BUILT_IN, *(name for name in NAMED if name != recipe.data.name)]
    for name in names:
        if name not in known and not name.startswith(FOLDER):
            raise ModebridgeError(
                f"Expected --ood to name another data set or folder:PATH, but got '{name[:80]}'; "
                f"{near(name[:80], known)}"
            )
    others = [located(name) for name in names or BUILT_IN]
    if len(set(map(label_of, others))) < len(others):
        raise ModebridgeError(f"Expected --ood to name each set once, but got {','.join(names)}; rename a folder.")
    return others


def tables_of(name: str) -> list[str]:
    """The names of the tables of logits on some images: one per corruption and severity, such as "noise-1", or one."""
    if name == CORRUPTED:
        return [f"{corruption}-{severity}" for corruption, severity in product(STRENGTHS, SEVERITIES)]
    return [label_of(name)]


def label_of(name: str) -> str:
    """The name of another set in tables: a folder's without its path."""
    return f"folder {Path(name.removeprefix(FOLDER)).name}" if name.startswith(FOLDER) else name
