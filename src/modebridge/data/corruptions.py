"""Shifted images: corruptions, computed on the fly, each at five severities, and images from outside a data set.

The definitions and parameters are those of D. Hendrycks and T. Dietterich, "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations" (ICLR 2019), who give three sets of parameters: CIFAR-10-C (32 pixels), Tiny
ImageNet-C (64) and ImageNet-C (224). Images of other sizes use those of the next smaller set (below 32 pixels those
of CIFAR-10-C). Unlike in the originals, the result is rounded to eight bits only if the images are bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from modebridge import seeds
from modebridge.errors import ModebridgeError, near

Span = tuple[float, float]
SEVERITIES = (1, 2, 3, 4, 5)

_PARAMETERS: dict[int, dict[str, tuple[float, ...]]] = {
    32: {
        "noise": (0.04, 0.06, 0.08, 0.09, 0.10),
        "blur": (0.4, 0.6, 0.7, 0.8, 1.0),
        "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
        "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
        "jpeg": (80, 65, 58, 50, 40),
    },
    64: {
        "noise": (0.04, 0.08, 0.12, 0.15, 0.18),
        "blur": (0.5, 0.75, 1.0, 1.25, 1.5),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        "pixelate": (0.9, 0.8, 0.7, 0.6, 0.5),
        "jpeg": (65, 58, 50, 40, 25),
    },
    224: {
        "noise": (0.08, 0.12, 0.18, 0.26, 0.38),
        "blur": (1.0, 2.0, 3.0, 4.0, 6.0),
        "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
        "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
        "jpeg": (25, 18, 15, 10, 7),
    },
}
"""Parameters by the image size (side in pixels) that they were chosen for."""


def corrupt(
    images: Tensor,
    corruption: str,
    severity: int,
    *,
    numbers: Sequence[int] | None = None,
    seed: int = 0,
    span: Span = (0.0, 1.0),
) -> Tensor:
    """Corrupt a batch of images; the result for an image does not depend on the rest of the batch.

    Args:
        images: (N, C, H, W), uint8 or floats.
        corruption: one of `CORRUPTIONS`.
        severity: 1 to 5.
        numbers: (N,), the number of each image, which determines its noise; None for 0 to N - 1.
        seed: seed of the noise.
        span: the values of black and white, for float images.

    >>> corrupt(torch.tensor([[[[0.0, 1.0]]]]), "contrast", 2)
    tensor([[[[0.2500, 0.7500]]]])
    """
    if corruption not in CORRUPTIONS:
        raise ModebridgeError(
            f"Expected a known corruption, but got '{str(corruption)[:80]}'; {near(str(corruption), CORRUPTIONS)}"
        )
    if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise ModebridgeError(
            f"Expected images to be (N, C, H, W) with 1 or 3 channels, but got the shape {tuple(images.shape)}; other "
            "inputs cannot be corrupted."
        )
    as_bytes = images.dtype == torch.uint8
    if not as_bytes and not images.is_floating_point():
        raise ModebridgeError(f"Expected images to be uint8 or floats, but got {images.dtype}; convert them.")
    numbers = range(len(images)) if numbers is None else numbers
    if len(numbers) != len(images):
        raise ModebridgeError(f"Expected one number per image, but got {len(numbers)} for {len(images)}; pass all.")
    value = parameter(corruption, severity, min(images.shape[2:]))
    if not len(images):
        return images.clone()
    span = (0.0, 255.0) if as_bytes else span
    # In float64, so that sums over pixels round to the same bits whatever the batch size.
    result = CORRUPTIONS[corruption](images.double(), value, span, numbers, seed)
    return (result.round().clamp(*span) if as_bytes else result).to(images.dtype)


def parameter(corruption: str, severity: int, side: int) -> float:
    """The parameter of a corruption for images whose shorter side has `side` pixels.

    Taken from the largest reference size of 32, 64 and 224 that is not above `side` (32 for smaller images). The blur's
    sigma is in pixels, so it grows with the side above the reference. Pixelate leaves at most side - severity pixels,
    so that severities also differ on the smallest images: 8 pixels become 7, 6, 5, 4 and 3.

    >>> parameter("blur", 5, 32), parameter("blur", 5, 448), parameter("blur", 5, 8)
    (1.0, 12.0, 1.0)
    """
    if type(severity) is not int or severity not in SEVERITIES:
        raise ModebridgeError(f"Expected severity to be 1, 2, 3, 4 or 5, but got {severity}; 5 is the strongest.")
    reference = max((size for size in _PARAMETERS if size <= side), default=min(_PARAMETERS))
    value = _PARAMETERS[reference][corruption][severity - 1]
    if corruption == "blur":
        return value * max(1.0, side / reference)
    return min(value, max(1, side - severity) / side) if corruption == "pixelate" else value


def _noise(images: Tensor, value: float, span: Span, numbers: Sequence[int], seed: int) -> Tensor:
    """The noise is sigma (high - low) z, clipped to the span; z is the same normal draw at every severity."""
    shape = images.shape[1:]
    drawn = [torch.randn(shape, generator=seeds.generator(seed, "noise", int(n)), dtype=images.dtype) for n in numbers]
    low, high = span
    return (images + value * (high - low) * torch.stack(drawn).to(images.device)).clamp(low, high)


def _contrast(images: Tensor, value: float, *_: object) -> Tensor:
    """Shrink towards the mean m of each channel of the image, m + c (x - m): its variance is multiplied by c^2."""
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + value * (images - mean)


def _jpeg(images: Tensor, value: float, span: Span, *_: object) -> Tensor:
    """Quantise to eight bits over the span, then save and load with Pillow: grey images as grey, others with 4:2:0."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ModebridgeError(
            "Expected Pillow for the corruption jpeg, but it is not installed; pip install 'modebridge[images]'."
        ) from error
    low, high = span
    pixels = ((images - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    decoded: list[Tensor] = []
    for image in pixels:
        # Grey: (H, W); colour: (H, W, 3).
        picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
        with io.BytesIO() as file:
            picture.save(file, "JPEG", quality=int(value))
            back = np.array(Image.open(file))
        decoded.append(torch.from_numpy(back[None] if len(image) == 1 else back.transpose(2, 0, 1)))
    return low + torch.stack(decoded).to(images) / 255 * (high - low)


def _along_sides(matrix: Callable[[int, float], Tensor], images: Tensor, value: float, *_: object) -> Tensor:
    """R x C^T: a linear map along the rows and one along the columns of each image."""
    rows, columns = (matrix(side, value).to(images) for side in images.shape[2:])
    return rows @ images @ columns.T


def _gaussian(side: int, sigma: float) -> Tensor:
    """A Gaussian of standard deviation sigma pixels, cut off at 4 sigma, with borders repeated.

    (side, side): row i holds the weights of all pixels in the blurred pixel i.
    """
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = (-(offsets.double() / sigma).square() / 2).exp()
    reads = (torch.arange(side)[:, None] + offsets).clamp(0, side - 1)
    matrix = torch.zeros(side, side, dtype=torch.float64)
    return matrix.scatter_add_(1, reads, (weights / weights.sum()).expand(side, -1))


def _coarse(side: int, share: float) -> Tensor:
    """Scale a side of n pixels down to int(c n) by box means, and up again by repetition, like Pillow's BOX."""
    small = max(1, int(share * side + 1e-9))  # 6 / 7 * 7 is 6
    return _box(side, small) @ _box(small, side)


def _box(to: int, side: int) -> Tensor:
    """(to, side): the mean of the pixels whose centres are in each of `to` equal boxes; the nearest when enlarging."""
    scale = side / to
    middle = (torch.arange(to, dtype=torch.float64) + 0.5) * scale
    offsets = (torch.arange(side, dtype=torch.float64) + 0.5 - middle[:, None]) / max(scale, 1.0)
    inside = ((offsets > -0.5) & (offsets <= 0.5)).double()
    return inside / inside.sum(dim=1, keepdim=True)


CORRUPTIONS: dict[str, Callable[[Tensor, float, Span, Sequence[int], int], Tensor]] = {
    "noise": _noise,
    "blur": partial(_along_sides, _gaussian),
    "contrast": _contrast,
    "pixelate": partial(_along_sides, _coarse),
    "jpeg": _jpeg,
}
"""Corruptions by name: functions of float64 images, the parameter, the span, the images' numbers and the seed."""

_GLYPHS = (
    "01110 10001 10001 11111 10001 10001 10001",  # A
    "01110 10001 10000 10000 10000 10001 01110",  # C
    "11111 10000 10000 11110 10000 10000 11111",  # E
    "11111 10000 10000 11110 10000 10000 10000",  # F
    "10001 10001 10001 11111 10001 10001 10001",  # H
    "00111 00010 00010 00010 00010 10010 01100",  # J
    "10001 10010 10100 11000 10100 10010 10001",  # K
    "10000 10000 10000 10000 10000 10000 11111",  # L
    "10001 11011 10101 10101 10001 10001 10001",  # M
    "10001 11001 10101 10101 10011 10001 10001",  # N
    "11110 10001 10001 11110 10000 10000 10000",  # P
    "11110 10001 10001 11110 10100 10010 10001",  # R
    "11111 00100 00100 00100 00100 00100 00100",  # T
    "10001 10001 10001 10001 10001 10001 01110",  # U
    "10001 10001 10001 10001 10001 01010 00100",  # V
    "10001 10001 10001 10101 10101 11011 10001",  # W
    "10001 10001 01010 00100 01010 10001 10001",  # X
    "10001 10001 01010 00100 00100 00100 00100",  # Y
)
"""Capital letters of 5 x 7 dots, without those that can be mistaken for digits (B, D, G, I, O, Q, S, Z)."""


def letters(count: int, seed: int = 0) -> Tensor:
    """Capital letters of the same size as the hand-written digits: (count, 1, 8, 8), floats in [0, 1].

    Each is one of 18 dot-matrix letters with random position and brightness, slightly blurred.
    """
    glyphs = torch.tensor([[[float(dot) for dot in row] for row in rows.split()] for rows in _GLYPHS])
    generator = seeds.generator(seed, "letters")
    which = torch.randint(len(glyphs), (count,), generator=generator).tolist()
    down, right = (torch.randint(n, (count,), generator=generator).tolist() for n in (2, 4))
    strength = 0.7 + 0.3 * torch.rand(count, generator=generator)
    images = torch.zeros(count, 1, 8, 8)
    for k in range(count):
        images[k, 0, down[k] : down[k] + 7, right[k] : right[k] + 5] = strength[k] * glyphs[which[k]]
    return corrupt(images, "blur", 1)


def scrambled(images: Tensor, numbers: Sequence[int], seed: int = 0) -> Tensor:
    """Images (N, C, H, W) with the pixels of each in its own random order, determined by its number."""
    flat = images.flatten(2)
    orders = [torch.randperm(flat.shape[2], generator=seeds.generator(seed, "scrambled", int(n))) for n in numbers]
    return torch.stack([image[:, order] for image, order in zip(flat, orders, strict=True)]).reshape(images.shape)


def read_svhn(folder: Path | str) -> Tensor:
    """The test images of SVHN, uint8 (26032, 3, 32, 32), from their official file test_32x32.mat."""
    from scipy.io import loadmat

    file = Path(folder) / "test_32x32.mat"
    if not file.is_file():
        raise ModebridgeError(f"Expected SVHN in '{folder}', but got no '{file.name}'; pass its folder as svhn=FOLDER.")
    try:
        pixels = loadmat(file)["X"]
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise ModebridgeError(f"Expected '{file}' to be SVHN's file, but got '{error}'; download it again.") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        got = f"{pixels.dtype} of {pixels.shape}"
        raise ModebridgeError(f"Expected '{file}' to hold images of (32, 32, 3), but got {got}; download it again.")
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))


def fitted(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images (N, C, H, W) as floats in [0, 1] of another shape: repeated or averaged to grey, resized bilinearly.

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
