"""Images from outside a data set, to test whether networks notice: built in, or from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from modebridge import seeds
from modebridge.data.corruptions import corrupt
from modebridge.errors import ModebridgeError

__all__ = ["fitted", "letters", "read_svhn", "scrambled"]

_GLYPHS = {
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "C": "01110 10001 10000 10000 10000 10001 01110",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "F": "11111 10000 10000 11110 10000 10000 10000",
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "J": "00111 00010 00010 00010 00010 10010 01100",
    "K": "10001 10010 10100 11000 10100 10010 10001",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "M": "10001 11011 10101 10101 10001 10001 10001",
    "N": "10001 11001 10101 10101 10011 10001 10001",
    "P": "11110 10001 10001 11110 10000 10000 10000",
    "R": "11110 10001 10001 11110 10100 10010 10001",
    "T": "11111 00100 00100 00100 00100 00100 00100",
    "U": "10001 10001 10001 10001 10001 10001 01110",
    "V": "10001 10001 10001 10001 10001 01010 00100",
    "W": "10001 10001 10001 10101 10101 11011 10001",
    "X": "10001 10001 01010 00100 01010 10001 10001",
    "Y": "10001 10001 01010 00100 00100 00100 00100",
}
"""Capital letters of 5 x 7 dots, without those that can be mistaken for digits (B, D, G, I, O, Q, S, Z)."""


def letters(count: int, seed: int = 0) -> Tensor:
    """Capital letters of the same size as the hand-written digits: (count, 1, 8, 8), floats in [0, 1].

    Each is one of 18 dot-matrix letters with random position and brightness, slightly blurred. They are drawn, not
    hand-written: close to digits, and no download is needed.
    """
    dots = {name: [[int(dot) for dot in row] for row in rows.split()] for name, rows in _GLYPHS.items()}
    glyphs = torch.tensor(list(dots.values()), dtype=torch.float32)
    generator = seeds.generator(seed, "letters")
    which = torch.randint(len(glyphs), (count,), generator=generator).tolist()
    down, right = (torch.randint(n, (count,), generator=generator).tolist() for n in (2, 4))
    strength = 0.7 + 0.3 * torch.rand(count, generator=generator)
    images = torch.zeros(count, 1, 8, 8)
    for k in range(count):
        images[k, 0, down[k] : down[k] + 7, right[k] : right[k] + 5] = strength[k] * glyphs[which[k]]
    return corrupt(images, "blur", 1)


def scrambled(images: Tensor, numbers: Sequence[int], seed: int = 0) -> Tensor:
    """Images (N, C, H, W) with the pixels of each in its own random order: same values, but no visible structure.

    Args:
        images: images of the data set itself.
        numbers: the numbers of the images, which determine their orders.
        seed: seed of the orders.
    """
    pixels = images.shape[2] * images.shape[3]
    orders = [torch.randperm(pixels, generator=seeds.generator(seed, "scrambled", int(n))) for n in numbers]
    flat = images.flatten(2)
    return torch.stack([flat[k][:, order] for k, order in enumerate(orders)]).reshape(images.shape)


def read_svhn(folder: Path | str) -> Tensor:
    """The test images of SVHN, uint8 (26032, 3, 32, 32), from their official file test_32x32.mat."""
    import numpy as np
    from scipy.io import loadmat

    file = Path(folder) / "test_32x32.mat"
    if not file.is_file():
        raise ModebridgeError(
            f"Expected SVHN in '{folder}', but got no 'test_32x32.mat'; pass its folder as svhn=FOLDER."
        )
    try:
        pixels = loadmat(file)["X"]
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise ModebridgeError(f"Expected '{file}' to be SVHN's file, but got '{error}'; download it again.") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise ModebridgeError(
            f"Expected '{file}' to hold images of (32, 32, 3), but got {pixels.dtype} of {pixels.shape}; download it "
            "again."
        )
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))


def fitted(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images as floats in [0, 1] of another shape: channels repeated or averaged to grey, resized bilinearly.

    Args:
        images: (N, 1 or 3, h, w), uint8 or floats in [0, 1].
        shape: (C, H, W) with 1 or 3 channels.

    >>> fitted(torch.full((2, 1, 8, 8), 255, dtype=torch.uint8), (3, 32, 32)).shape
    torch.Size([2, 3, 32, 32])
    """
    if images.dim() != 4 or images.shape[1] not in (1, 3) or len(shape) != 3 or shape[0] not in (1, 3):
        raise ModebridgeError(
            f"Expected images with 1 or 3 channels, but got {tuple(images.shape[1:])} for {tuple(shape)}; use others."
        )
    floats = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    if floats.shape[1] == 3 and shape[0] == 1:
        # Luma of ITU-R 601-2, as in Pillow's "L".
        floats = (floats * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    floats = floats.expand(-1, shape[0], -1, -1)
    if tuple(floats.shape[2:]) != tuple(shape[1:]):
        floats = F.interpolate(floats, size=tuple(shape[1:]), mode="bilinear", antialias=True, align_corners=False)
    return floats.contiguous()
