"""Images as people send them, to pixels as an exported file takes them: float32 (C, H, W) in [0, 1]."""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from modebridge.errors import ModebridgeError

__all__ = ["from_base64", "from_bytes", "from_lists"]

MOST_PIXELS = 50_000_000
"""A file of a few kB can unpack to gigabytes; one with more pixels than this is not unpacked."""


def from_bytes(data: bytes, shape: Sequence[int]) -> NDArray[np.float32]:
    """Read an image file, in grey or colour as asked for, resized where its size is another (Pillow, bilinear).

    Args:
        data: the file's bytes, in any format that Pillow reads.
        shape: (C, H, W), C being 1 or 3.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    if channels not in (1, 3):
        raise ModebridgeError(
            f"Expected images of 1 or 3 channels to be read from files, but this network takes {channels}; "
            "send nested lists."
        )
    try:
        with warnings.catch_warnings():
            # Pillow's own remark about large images; ours is below.
            warnings.simplefilter("ignore")
            picture: Image.Image = Image.open(io.BytesIO(data))
        if picture.width * picture.height > MOST_PIXELS:
            raise ModebridgeError(
                f"Expected an image of at most {MOST_PIXELS} pixels, but got {picture.width} x {picture.height}; "
                "send a smaller one."
            )
        if picture.mode == "F" or picture.mode.startswith("I"):
            # Pillow would cut off everything above 255.
            raise ModebridgeError(
                f"Expected an image of 8 bits a channel, but got mode '{picture.mode}'; convert it first."
            )
        # As cameras mean it, not as their sensors lie.
        picture = ImageOps.exif_transpose(picture).convert("L" if channels == 1 else "RGB")
        if picture.size != (width, height):
            picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    except ModebridgeError:
        raise
    # Damaged files raise more than OSError: SyntaxError, struct.error, EOFError and others come out of plugins.
    except Exception as error:
        raise ModebridgeError(
            f"Expected an image file, but got {len(data)} bytes that cannot be read as one; send PNG or JPEG."
        ) from error
    pixels = np.asarray(picture, dtype=np.float32) / 255.0
    return np.ascontiguousarray(pixels[None] if channels == 1 else pixels.transpose(2, 0, 1))


def from_base64(text: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """Read an image file that was written in base64."""
    try:
        return from_bytes(base64.b64decode(text, validate=True), shape)
    except (binascii.Error, ValueError) as error:
        if isinstance(error, ModebridgeError):
            raise
        raise ModebridgeError("Expected image to be base64, but it is not; encode the bytes of a file.") from error


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
