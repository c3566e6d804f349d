"""Seals: one hash over everything in a record or an artefact, so that no part of it can change unnoticed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from modebridge import trees
from modebridge.errors import ModebridgeError

__all__ = ["FILES", "FORMAT", "Damage", "digest", "read_artefact", "read_bytes", "seal_of", "sealed", "unsealed"]

FILES = ("meta.json", "weights.safetensors")
"""The files of an artefact: metadata, sealed with the hash of the tensors, and the tensors."""

FORMAT = 2
"""The format of records written here; those of version 0.1 have neither format nor seal."""


class Damage(Exception):  # noqa: N818 - a finding about a file, caught where files are read; not a user error
    """Describes what is wrong with a file of a run folder."""


def sealed(record: Mapping[str, Any]) -> str:
    """A record as JSON, with the seal that `unsealed` requires.

    >>> json.loads(sealed({"flops": 1.5}))["format"]
    2
    """
    full_record = {**record, "format": FORMAT}
    return json.dumps({**full_record, "seal": seal_of(full_record)}, indent=1)


def unsealed(file: Path, *, old: bool = True) -> dict[str, Any]:
    """The record in a file, verified to be exactly as written.

    Args:
        file: a file with one record as JSON.
        old: whether to accept a record of version 0.1, which has neither format nor seal, without verification. A
            record that lost one of the two by damage still has the other, and so is not mistaken for an old one.
    """
    data, name = read_bytes(file), file.name
    try:
        record = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise Damage(f"{name} is not readable as JSON") from None
    if not isinstance(record, dict):
        raise Damage(f"{name} is not a JSON object")
    if old and "seal" not in record and "format" not in record:
        return record
    if record.get("seal") != seal_of(record):
        raise Damage(f"{name} does not match its seal")
    if record.get("format") != FORMAT:
        raise ModebridgeError(
            f"Expected '{file}' to be of format {FORMAT}, but got {record.get('format')!r}; it was written by another "
            "version of modebridge, so use that one or choose another folder."
        )
    return record


def read_artefact(path: Path, *, known: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of an artefact folder; raises Damage if something is wrong.

    Args:
        path: its folder.
        known: whether its tensors were already verified by hash, and have not changed since.
    """
    metadata_file, weights = (path / name for name in FILES)
    meta = unsealed(metadata_file)
    if not os.path.lexists(weights):
        raise Damage(f"{weights.name} is missing")
    try:
        tensors = safetensors.torch.load_file(weights)
        intact = known or meta.get("hash") == trees.fingerprint(tensors)
    except Exception as error:  # a broken file can raise anything
        raise Damage(f"{weights.name} cannot be read") from error
    if not intact:
        raise Damage(f"{weights.name} does not match its hash")
    return tensors, meta


def seal_of(record: Mapping[str, Any]) -> str:
    """A hash over everything in a record except its seal, in any order."""
    rest = {key: value for key, value in record.items() if key != "seal"}
    as_read = json.loads(json.dumps(rest))  # tuples as lists, keys as text
    return digest(json.dumps(as_read, sort_keys=True, separators=(",", ":")))


def digest(data: bytes | str) -> str:
    """The hash of a file's content."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def read_bytes(file: Path) -> bytes:
    """The content of a file; raises Damage if it cannot be read."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise Damage(f"{file.name} is missing") from None
    except IsADirectoryError:
        raise Damage(f"{file.name} is a folder") from None
    except OSError as error:
        raise Damage(f"{file.name} cannot be read: {error.strerror or error}") from None
