"""A file that shows that it is whole: its last 64 bytes are the SHA-256, in hex digits, of all bytes before them.

They are the value of a metadata entry in ONNX and the end of the archive's comment in .pt2, so that other readers of
these formats need not know. Nothing is left out: weights, graph, metadata, and the name of the seal itself.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import BinaryIO

from modebridge.errors import ModebridgeError

__all__ = ["SEAL", "check_seal", "seal_archive", "write_sealed_onnx"]

SEAL = "sha256"
"""The metadata of a sealed file says this too: one that has lost its seal is not taken for a file without."""

NAME = b"modebridge.sha256"
DIGITS = 64
BETWEEN = 2
"""Bytes between name and digits: in ONNX the type and length of a value, in .pt2 a colon and a space."""

CHUNK = 2**20


def write_sealed_onnx(path: Path, model: bytes) -> None:
    """Write a serialised ONNX model with its seal behind it, which protobuf merges into the model when it is read."""
    import onnx

    entry = onnx.StringStringEntryProto(key=NAME.decode(), value="0" * DIGITS)
    opening = onnx.ModelProto(metadata_props=[entry]).SerializeToString()[:-DIGITS]
    digest = hashlib.sha256(model)
    digest.update(opening)
    with path.open("wb") as file:
        file.write(model)
        file.write(opening + digest.hexdigest().encode())


def seal_archive(path: Path) -> None:
    """Put the seal into a zip archive without a comment, whose last two bytes are the comment's length."""
    comment = NAME + b": "
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", len(comment) + DIGITS) + comment)
        file.write(_digits(file, file.tell()))


def check_seal(path: Path) -> bool:
    """Refuse a file that is not as it was written; whether it has a seal at all, which those of 0.1 have not."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - DIGITS - BETWEEN - len(NAME), 0))
        if file.read(len(NAME)) != NAME:
            return False
        file.seek(size - DIGITS)
        if file.read() != _digits(file, size - DIGITS):
            raise ModebridgeError(
                f"Expected '{path}' to be as modebridge wrote it, but its SHA-256 is another: it was damaged or "
                "changed; get it again, or export it again."
            )
    return True


def _digits(file: BinaryIO, size: int) -> bytes:
    """Of the first bytes of a file, which is then behind them."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (part := file.read(min(size, CHUNK))):
        digest.update(part)
        size -= len(part)
    return digest.hexdigest().encode()
