"""The files of one artefact in its folder: tensors, and metadata sealed with the tensors' hash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from modebridge import trees
from modebridge.runs.sealed_records import Damage, unsealed

__all__ = ["FILES", "read_artefact"]

FILES = ("meta.json", "weights.safetensors")


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
