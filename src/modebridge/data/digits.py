"""The hand-written digits that come with the package.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, licence CC BY 4.0. These are the 1,797 images of its test set, 8x8 with 17 grey levels,
as scikit-learn ships them.
"""

from __future__ import annotations

import hashlib
import io
from importlib import resources

import numpy as np
import torch

from modebridge import seeds
from modebridge.data.imageset import ImageSet
from modebridge.errors import ModebridgeError

__all__ = ["load_digits", "noisy_digits"]

SHA256 = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"


def load_digits() -> ImageSet:
    """The 1,797 digits as floats in [0, 1], (1797, 1, 8, 8), in their stored order."""
    raw = resources.files("modebridge.data").joinpath("digits.npz").read_bytes()
    if hashlib.sha256(raw).hexdigest() != SHA256:
        raise ModebridgeError(
            "Expected the digits in the package to be as released, but their checksum differs; reinstall modebridge."
        )
    with np.load(io.BytesIO(raw), allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    return ImageSet(torch.from_numpy(images).float().div(16).unsqueeze(1), torch.from_numpy(labels).long(), classes=10)


def noisy_digits(noise: float, seed: int = 0) -> ImageSet:
    """The digits with fixed pixel noise, in a fixed random order.

    Clean digits are too easy: a few confident errors determine the NLL. The noise is part of the data set, the same in
    every epoch and run.

    Args:
        noise: standard deviation, relative to that of the images.
        seed: seed of noise and order.
    """
    clean = load_digits()
    draw = torch.randn(clean.images.shape, generator=seeds.generator(seed, "digits", "noise"))
    return ImageSet(clean.images + noise * clean.images.std() * draw, clean.labels, 10).shuffled(seed)
