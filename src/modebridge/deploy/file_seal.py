"""The seal of an exported file: its last 64 bytes are the SHA-256, in hex digits, of all bytes before them.

The digits are the value of a metadata entry in ONNX and the end of the archive comment in .pt2, so other readers of
these formats can ignore them. They cover everything: weights, graph, metadata, and the name of the seal itself.
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
"""Also stored in the metadata, so that a file that lost its seal is not taken for an unsealed one."""

NAME = b"modebridge.sha256"
DIGITS = 64
BETWEEN = 2
"""Bytes between name and digits: type and length of a value in ONNX, a colon and a space in .pt2."""

CHUNK = 2**20


def write_sealed_onnx(path: Path, model: bytes) -> None:
    """Write a serialised ONNX model followed by its seal, which protobuf merges into the model when reading."""
    import onnx

    entry = onnx.StringStringEntryProto(key=NAME.decode(), value="0" * DIGITS)
    opening = onnx.ModelProto(metadata_props=[entry]).SerializeToString()[:-DIGITS]
    digest = hashlib.sha256(model)
    digest.update(opening)
    with path.open("wb") as file:
        file.write(model)
        file.write(opening + digest.hexdigest().encode())


def seal_archive(path: Path) -> None:
    """Seal a zip archive that has no comment; its last two bytes are the length of the comment."""
    comment = NAME + b": "
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(struct.pack("<H", len(comment) + DIGITS) + comment)
        file.write(_digits(file, file.tell()))


def check_seal(path: Path) -> bool:
    """Whether a file has a seal (files of 0.1 have none); an error if the seal does not match."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - DIGITS - BETWEEN - len(NAME), 0))
        if file.read(len(NAME)) != NAME:
            return False
        file.seek(size - DIGITS)
        if file.read() != _digits(file, size - DIGITS):
            raise ModebridgeError(
                f"Expected '{path}' to be intact, but its SHA-256 does not match, so it was damaged or changed; "
                "download it again, or export it again."
            )
    return True


def _digits(file: BinaryIO, size: int) -> bytes:
    """The hex digits of the first `size` bytes of a file; leaves the file position after them."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (part := file.read(min(size, CHUNK))):
        digest.update(part)
        size -= len(part)
    return digest.hexdigest().encode()
