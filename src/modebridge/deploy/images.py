"""Decode images to the pixels that an exported file takes: float32 (C, H, W) in [0, 1]."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from modebridge.errors import ModebridgeError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

__all__ = ["MAX_MEGAPIXELS", "TooManyPixelsError", "from_base64", "from_bytes", "from_lists", "from_path"]

MAX_MEGAPIXELS = 25.0
"""Images with more pixels are not decoded: a file of a few kB can expand to gigabytes."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats whose header has the image size. Pillow supports others that embed further images or execute code."""


class TooManyPixelsError(ModebridgeError):
    """An image with more pixels than allowed."""


def from_bytes(data: bytes, shape: Sequence[int], *, max_megapixels: float = MAX_MEGAPIXELS) -> NDArray[np.float32]:
    """Decode an image file to greyscale or RGB, and resize it if needed (Pillow, bilinear).

    Args:
        data: contents of the file, in one of `FORMATS`.
        shape: (C, H, W), where C is 1 or 3.
        max_megapixels: larger images are refused before they are decoded.
    """
    return _read(io.BytesIO(data), f"{len(data)} bytes", shape, max_megapixels)


def from_path(path: Path, shape: Sequence[int], *, max_megapixels: float = MAX_MEGAPIXELS) -> NDArray[np.float32]:
    """Decode an image file on disk; see `from_bytes`."""
    if path.exists() and not path.is_file():  # reading a pipe might never end
        raise ModebridgeError("Expected an image file, or a folder of images, but it is neither; check the name.")
    with path.open("rb") as file:
        return _read(file, f"{path.stat().st_size} bytes", shape, max_megapixels)


def _read(file: IO[bytes], size: str, shape: Sequence[int], max_megapixels: float) -> NDArray[np.float32]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ModebridgeError(
            "Expected Pillow to read image files, but it is not installed; pip install 'modebridge[images]'."
        ) from error
    channels, height, width = shape
    if channels not in (1, 3):
        raise ModebridgeError(
            f"Expected a network with 1 or 3 input channels to read image files, but this one has {channels}; "
            "send nested lists."
        )
    mode = "L" if channels == 1 else "RGB"
    try:
        # Pillow warns about large images; we refuse them below.
        with warnings.catch_warnings(action="ignore"):
            picture: Picture = Image.open(file, formats=FORMATS)
        _check_pixels(picture, max_megapixels)
        if picture.mode == "F" or picture.mode.startswith("I"):
            # Pillow would clip everything above 255.
            raise ModebridgeError(
                f"Expected an image with 8 bits per channel, but got mode '{picture.mode}'; convert it first."
            )
        # Apply the camera's orientation in place, and convert only if needed, to avoid copies.
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode != mode:
            picture = picture.convert(mode)
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.float32) / 255.0
    except ModebridgeError:
        raise
    # Damaged files raise more than OSError: plugins raise SyntaxError, struct.error, EOFError and others.
    except Exception as error:
        raise ModebridgeError(
            f"Expected an image file, but got {size} that cannot be decoded; send PNG or JPEG."
        ) from error
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def _check_pixels(picture: Picture, max_megapixels: float) -> None:
    """Refuse a large image by its header, before it is decoded."""
    from PIL import TiffImagePlugin

    width, height = picture.size
    if isinstance(picture, TiffImagePlugin.TiffImageFile):
        # Tiles are decoded as a whole, even if little of one is inside the image.
        width = max(width, int(picture.tag_v2.get(TiffImagePlugin.TILEWIDTH, 0)))
        height = max(height, int(picture.tag_v2.get(TiffImagePlugin.TILELENGTH, 0)))
    if width * height > max_megapixels * 1e6:
        raise TooManyPixelsError(
            f"Expected an image of at most {max_megapixels:g} megapixels, but got {width} x {height} pixels; "
            "shrink it, or raise max_megapixels."
        )


def from_base64(text: str, shape: Sequence[int], *, max_megapixels: float = MAX_MEGAPIXELS) -> NDArray[np.float32]:
    """Decode an image file given in base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ModebridgeError("Expected image to be base64, but it is not; encode the contents of a file.") from error
    return from_bytes(data, shape, max_megapixels=max_megapixels)


def from_lists(values: object, shape: Sequence[int]) -> NDArray[np.float32]:
    """Check and convert nested lists of numbers (C, H, W) in [0, 1]."""
    wanted = f"nested lists of shape {tuple(shape)} with numbers from 0 to 1"
    try:
        pixels = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModebridgeError(f"Expected image to be base64 or {wanted}, but got something else; see /info.") from error
    if pixels.shape != tuple(shape):
        raise ModebridgeError(f"Expected image to be {wanted}, but got shape {pixels.shape}; see /info.")
    if not np.isfinite(pixels).all() or pixels.min(initial=0.0) < 0 or pixels.max(initial=0.0) > 1:
        raise ModebridgeError(f"Expected image to be {wanted}, but some are out of range; divide bytes by 255.")
    return pixels
