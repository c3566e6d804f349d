"""The inputs and outputs of an exported file, by name, each with a shape and type; and image files as such inputs."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from modebridge.batches import IMAGES, LABELS, inputs_of, map_inputs
from modebridge.errors import ModebridgeError, needed
from modebridge.types import Inputs

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Arrays: TypeAlias = Array | Mapping[str, Array]
"""`Inputs` as NumPy arrays."""

OUTPUTS = ("probabilities", "members", "entropy", "mutual_information", "sets", "answered", "used")

RESERVED = ("threshold", *OUTPUTS)
"""Names that exported files use for other inputs and outputs."""

TYPES = ("float32", "int64", "int32", "bool")


SLACK = 0.1
"""Pixels this far outside of 0 to 1 are noise, those beyond it another range."""

ANY = -1
"""In a shape: any length, the same for all inputs of a call."""


def pixel_range(inputs: Inputs) -> tuple[float, float]:
    """The lowest and the highest pixel of images (B, C, H, W); 0 and 1 if they are within these, or no images."""
    if not (isinstance(inputs, Tensor) and inputs.dim() == 4 and inputs.shape[1] in (1, 3) and inputs.numel()):
        return 0.0, 1.0
    low, high = float(inputs.min()), float(inputs.max())
    return (low, high) if low < -SLACK or high > 1 + SLACK else (0.0, 1.0)


def pixel_doubts(pixels: tuple[float, float]) -> list[str]:
    """What to do if a network takes pixels of another range than `predict` and `serve` pass; nothing for 0 to 1."""
    low, high = pixels
    if (low, high) == (0, 1):
        return []
    return [
        f"Images go from {low:.3g} to {high:.3g}, but `predict` and `serve` pass pixels from 0 to 1: to use them, make "
        "the normalization the first layer of the network."
    ]


def range_doubt(feed: Mapping[str, Array], meta: Mapping[str, Any]) -> str:
    """What to say of images far outside of the range that a file knows; nothing for others."""
    (low, high), shape, table = meta["pixels"], meta["image"] or [], next(iter(feed.values()))
    least, most = float(table.min(initial=low)), float(table.max(initial=high))
    if shape[:-2] not in ([1], [3]) or (least >= 2 * low - high and most <= 2 * high - low):
        return ""
    wanted = f"but those of the networks from {low:.3g} to {high:.3g}: scale them as in training, bytes by 1/255."
    return f"Images go from {least:.3g} to {most:.3g}, {wanted}"


class Spec(NamedTuple):
    """One input or output of a file: its shape without the batch axis, and NumPy's name of its type."""

    shape: tuple[int, ...]
    type: str


def specs_in(meta: Mapping[str, Any]) -> dict[str, Spec]:
    """The input specs of a file, from its metadata."""
    return {name: Spec(tuple(entry["shape"]), entry["type"]) for name, entry in meta["inputs"].items()}


def output_specs(meta: Mapping[str, Any]) -> dict[str, Spec]:
    """The output specs of a file, from its metadata."""
    classes, members, places = len(meta["classes"]), len(meta["members"]), meta["places"]
    before = {"probabilities": (classes,), "members": (members, classes), "sets": (classes,)}
    types = {"used": "int64", "sets": "bool", "answered": "bool"}
    shapes = {name: () if name == "used" else (*before.get(name, ()), *places) for name in meta["outputs"]}
    return {name: Spec(shapes[name], types.get(name, "float32")) for name in meta["outputs"]}


def check_example(example: object, what: str) -> Inputs:
    """The inputs of an example as an exported file takes them: on the CPU, with floats as float32."""
    inputs = map_inputs(lambda x: (x.float() if x.is_floating_point() else x).detach().cpu(), inputs_of(example, what))
    tensors = {IMAGES: inputs} if isinstance(inputs, Tensor) else inputs
    for name, tensor in tensors.items():
        if name in RESERVED:
            raise ModebridgeError(
                f"Expected the inputs of {what} not to have reserved names, but got '{name}'; wrap the network in a "
                "module that renames it."
            )
        if str(tensor.dtype).removeprefix("torch.") not in TYPES:
            raise ModebridgeError(
                f"Expected {name} of {what} to be {', '.join(TYPES)}, but got {tensor.dtype}; convert them, bytes of "
                "images to floats in [0, 1]."
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModebridgeError(f"Expected {what} to be finite, but got NaN or Inf; give real inputs.")
    _check_sizes(tensors)
    return inputs


def checked(given: object, specs: Mapping[str, Spec]) -> dict[str, Array]:
    """The inputs of a call, by name and in the types that the file takes.

    In a dict, which a file with several inputs needs, labels and values other than arrays and tensors are ignored.
    """
    if not isinstance(given, Mapping):
        if len(specs) > 1:
            raise ModebridgeError(
                f"Expected several inputs by name ({', '.join(specs)}), but got {type(given).__name__}; pass a dict."
            )
        given = dict.fromkeys(specs, given)
    wrong = [f"'{name}' is missing" for name in specs if name not in given]
    tables = [name for name, value in given.items() if isinstance(value, Tensor | np.ndarray)]
    wrong += [f"'{name}' is not one of them" for name in tables if name not in (*specs, *LABELS)]
    if wrong:
        raise ModebridgeError(f"Expected the inputs {', '.join(specs)}, but {wrong[0]}; pass exactly these.")
    found = {name: _table(given[name], name, spec) for name, spec in specs.items()}
    _check_sizes(found)
    lengths = {table.shape[1] for name, table in found.items() if ANY in specs[name].shape}
    if len(lengths) > 1 or 0 in lengths:
        raise ModebridgeError(
            f"Expected sequences of one length, at least 1, but got {', '.join(map(str, sorted(lengths)))}; pad them."
        )
    return found


def _check_sizes(tables: Mapping[str, Sized]) -> None:
    sizes = sorted({str(len(table)) for table in tables.values()})
    if len(sizes) > 1:
        raise ModebridgeError(
            f"Expected all inputs to have the same number of rows, but got {', '.join(sizes)}; give one batch."
        )


def _table(given: Any, name: str, spec: Spec) -> Array:
    table = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    sizes = zip(spec.shape, table.shape[1:], strict=False)
    if table.ndim != len(spec.shape) + 1 or any(size not in (ANY, given) for size, given in sizes):
        hint = "resize them" if spec.type == "float32" else "pad or cut them"
        if table.ndim == len(spec.shape):
            hint = "pass a batch, as in images[None]"
        elif len(spec.shape) == 3 and table.ndim == 4 and table.shape[1] != spec.shape[0]:
            hint = "convert them to as many channels"
        wanted = ", ".join("any length" if size == ANY else str(size) for size in spec.shape)
        raise ModebridgeError(f"Expected {name} of shape (B, {wanted}), but got {table.shape}; {hint}.")
    converted = np.ascontiguousarray(table, dtype=spec.type)
    if spec.type == "float32":
        if not np.issubdtype(table.dtype, np.floating):
            raise ModebridgeError(
                f"Expected {name} as floats in [0, 1], but got {table.dtype}; divide uint8 images by 255."
            )
    elif not (np.can_cast(table.dtype, spec.type, "same_kind") and np.array_equal(converted, table)):
        raise ModebridgeError(f"Expected {name} as {spec.type}, but got {table.dtype} that do not fit; convert them.")
    return converted


MAX_MEGAPIXELS = 25.0
"""Images with more pixels are not decoded: a file of a few kB can expand to gigabytes."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats whose header has the image size. Pillow supports others that embed further images or execute code."""

TILE_SIDES = (322, 323)
"""Tags of TIFF: TileWidth, TileLength."""


class TooManyPixelsError(ModebridgeError):
    """An image with more pixels than allowed."""


def from_path(path: Path, shape: Sequence[int]) -> NDArray[np.float32]:
    """Decode an image file on disk; see `from_bytes`."""
    try:
        if path.is_dir():
            raise ModebridgeError("Expected a folder of images, but it has none; check their endings.")
        if path.exists() and not path.is_file():  # reading a pipe might never end
            raise ModebridgeError("Expected an image file, or a folder of images, but it is neither; check the name.")
        return from_bytes(path.read_bytes(), shape)
    except OSError as error:
        got = "it does not exist" if isinstance(error, FileNotFoundError) else f"got '{error.strerror}'"
        raise ModebridgeError(f"Expected an image to read, but {got}; check the path.") from error


def from_bytes(data: bytes, shape: Sequence[int], *, max_megapixels: float = MAX_MEGAPIXELS) -> NDArray[np.float32]:
    """Decode an image file to the pixels that a file takes: float32 (C, H, W) in [0, 1], where C is 1 or 3.

    It is cropped in the middle to their proportions and resized (Pillow, bilinear), if needed; larger images than
    `max_megapixels` are refused before they are decoded.
    """
    with needed("Pillow to read image files", "images"):
        from PIL import Image, ImageOps
    (channels, height, width), mode = shape, "L" if shape[0] == 1 else "RGB"
    if channels not in (1, 3):
        raise ModebridgeError(
            f"Expected a network with 1 or 3 input channels to read image files, but this one has {channels}; "
            "send nested lists."
        )
    try:
        # Pillow warns about large images; we refuse them below.
        with warnings.catch_warnings(action="ignore"):
            picture: Picture = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_pixels(picture, max_megapixels)
        if picture.mode == "F" or picture.mode.startswith("I"):
            # Pillow would clip everything above 255.
            raise ModebridgeError(
                f"Expected an image with 8 bits per channel, but got mode '{picture.mode}'; convert it first."
            )
        # The camera's orientation, in place; converted only if needed: no copies of large images.
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode != mode:
            picture = picture.convert(mode)
        if picture.size != (width, height):
            picture = ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.float32) / 255.0
    except ModebridgeError:
        raise
    # Damaged files raise more than OSError: plugins raise SyntaxError, struct.error, EOFError and others.
    except Exception as error:
        raise ModebridgeError(
            f"Expected an image file, but got {len(data)} bytes that cannot be decoded; use PNG or JPEG."
        ) from error
    return np.ascontiguousarray(pixels.reshape(height, width, channels).transpose(2, 0, 1))


def _check_pixels(picture: Picture, max_megapixels: float) -> None:
    """Refuse a large image by its header, before it is decoded."""
    # Tiles of TIFF are decoded as a whole, even if little of one is inside the image.
    tags = getattr(picture, "tag_v2", {})
    width, height = (max(side, tags.get(tag, 0)) for side, tag in zip(picture.size, TILE_SIDES, strict=True))
    if not width * height <= max_megapixels * 1e6:  # nor if it is NaN
        raise TooManyPixelsError(
            f"Expected an image of at most {max_megapixels:g} megapixels, but got {width} x {height} pixels; "
            "shrink it, or raise max_megapixels."
        )


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


def from_tokens(values: object, specs: Mapping[str, Spec]) -> dict[str, Array]:
    """Check and convert one list of integers for each input, by name, to a batch of one."""
    wanted = ", ".join(f'"{name}": [...]' for name in specs)
    if not isinstance(values, dict) or {*values} != {*specs}:
        raise ModebridgeError(f"Expected {{{wanted}}} with lists of integers, but got something else; see /info.")
    try:
        tables = {name: np.asarray([values[name]]) for name in specs}
    except ValueError as error:
        raise ModebridgeError(f"Expected {{{wanted}}} with flat lists, but got nested ones; see /info.") from error
    for name, table in tables.items():
        if table.dtype.kind not in "iub" or table.ndim != 2:
            raise ModebridgeError(f"Expected '{name}' to be a list of integers, but got something else; see /info.")
    return checked(tables, specs)
