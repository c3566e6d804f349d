"""Images as people send them, to pixels as an exported file takes them: float32 (C, H, W) in [0, 1]."""

from __future__ import annotations

import base64
import binascii
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
"""A file of a few kB can unpack to gigabytes; one with more pixels than this is not unpacked."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Those whose header tells the size. Pillow knows more, some of which unpack a picture that hides inside, or run it."""


class TooManyPixelsError(ModebridgeError):
    """An image that would unpack to more pixels than allowed."""


def from_bytes(data: bytes, shape: Sequence[int], *, max_megapixels: float = MAX_MEGAPIXELS) -> NDArray[np.float32]:
    """Read an image file, in grey or colour as asked for, resized where its size is another (Pillow, bilinear).

    Args:
        data: the file's bytes, in one of `FORMATS`.
        shape: (C, H, W), C being 1 or 3.
        max_megapixels: a larger image is refused before it is unpacked.
    """
    return _read(io.BytesIO(data), f"{len(data)} bytes", shape, max_megapixels)


def from_path(path: Path, shape: Sequence[int], *, max_megapixels: float = MAX_MEGAPIXELS) -> NDArray[np.float32]:
    """Read an image file from disk; see `from_bytes`."""
    with path.open("rb") as file:
        return _read(file, f"{path.stat().st_size} bytes", shape, max_megapixels)


def _read(file: IO[bytes], size: str, shape: Sequence[int], max_megapixels: float) -> NDArray[np.float32]:
    from PIL import Image, ImageOps

    channels, height, width = shape
    if channels not in (1, 3):
        raise ModebridgeError(
            f"Expected images of 1 or 3 channels to be read from files, but this network takes {channels}; "
            "send nested lists."
        )
    mode = "L" if channels == 1 else "RGB"
    try:
        with warnings.catch_warnings():
            # Pillow's own remark about large images; ours is below.
            warnings.simplefilter("ignore")
            picture: Picture = Image.open(file, formats=FORMATS)
        _check_pixels(picture, max_megapixels)
        if picture.mode == "F" or picture.mode.startswith("I"):
            # Pillow would cut off everything above 255.
            raise ModebridgeError(
                f"Expected an image of 8 bits a channel, but got mode '{picture.mode}'; convert it first."
            )
        # As cameras mean it, not as their sensors lie. In place, and converted only if need be: every copy counts.
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode != mode:
            picture = picture.convert(mode)
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.float32) / 255.0
    except ModebridgeError:
        raise
    # Damaged files raise more than OSError: SyntaxError, struct.error, EOFError and others come out of plugins.
    except Exception as error:
        raise ModebridgeError(
            f"Expected an image file, but got {size} that cannot be read as one; send PNG or JPEG."
        ) from error
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def _check_pixels(picture: Picture, max_megapixels: float) -> None:
    """Refuse an image by its header, before anything is unpacked."""
    from PIL import TiffImagePlugin

    width, height = picture.size
    if isinstance(picture, TiffImagePlugin.TiffImageFile):
        # A tile is unpacked whole, however little of it lies inside the image.
        width = max(width, int(picture.tag_v2.get(TiffImagePlugin.TILEWIDTH, 0)))
        height = max(height, int(picture.tag_v2.get(TiffImagePlugin.TILELENGTH, 0)))
    if width * height > max_megapixels * 1e6:
        raise TooManyPixelsError(
            f"Expected an image of at most {max_megapixels:g} megapixels, but got {width} x {height} pixels; "
            "make it smaller, or raise max_megapixels."
        )


def from_base64(text: str, shape: Sequence[int], *, max_megapixels: float = MAX_MEGAPIXELS) -> NDArray[np.float32]:
    """Read an image file that was written in base64."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ModebridgeError("Expected image to be base64, but it is not; encode the bytes of a file.") from error
    return from_bytes(data, shape, max_megapixels=max_megapixels)


def from_lists(values: object, shape: Sequence[int]) -> NDArray[np.float32]:
    """Take nested lists of numbers (C, H, W) in [0, 1] as they are."""
    wanted = f"nested lists of shape {tuple(shape)} with numbers from 0 to 1"
    try:
        pixels = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModebridgeError(f"Expected image to be base64 or {wanted}, but got something else; see /info.") from error
    if pixels.shape != tuple(shape):
        raise ModebridgeError(f"Expected image to be {wanted}, but got shape {pixels.shape}; see /info.")
    if not np.isfinite(pixels).all() or pixels.min(initial=0.0) < 0 or pixels.max(initial=0.0) > 1:
        raise ModebridgeError(f"Expected image to be {wanted}, but some are outside; divide bytes by 255.")
    return pixels
