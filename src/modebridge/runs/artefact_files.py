"""One artefact as it lies in its folder: tensors, and notes that are sealed with the tensors' hash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from modebridge import trees
from modebridge.runs.sealed_records import Damage, unsealed

__all__ = ["FILES", "read_artefact", "stamp_of"]

FILES = ("meta.json", "weights.safetensors")


def read_artefact(path: Path, *, known: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and notes of an artefact, wherever it lies, or what is wrong with it, as a Damage.

    Args:
        path: its folder.
        known: whether its tensors were found to fit their hash before, and not changed since.
    """
    notes, weights = (path / name for name in FILES)
    meta = unsealed(notes)
    if not os.path.lexists(weights):
        raise Damage(f"{weights.name} is missing")
    try:
        tensors = safetensors.torch.load_file(weights)
        whole = known or meta.get("hash") == trees.fingerprint(tensors)
    except Exception as error:  # a broken file raises whatever its reader stumbles over
        raise Damage(f"{weights.name} cannot be read") from error
    if not whole:
        raise Damage(f"{weights.name} does not fit its hash")
    return tensors, meta


def stamp_of(*files: Path) -> tuple[object, ...]:
    """By which a file is known to be the one that was looked at; unlike any other where it cannot be looked at."""
    try:
        stats = [file.stat() for file in files]
    except OSError:
        return (object(),)
    return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in stats)
