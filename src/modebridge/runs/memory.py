"""Artefacts in memory, for runs without a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from modebridge import trees

__all__ = ["Memory"]


class Memory:
    """Keeps the artefacts of a run as long as the run lives."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {}

    def meta(self, place: str) -> dict[str, Any]:
        """The metadata of an artefact; empty if there is none."""
        return self._kept.get(place, ({}, {}))[1]

    def read(self, place: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and metadata of an artefact; empty if there is none."""
        return self._kept.get(place, ({}, {}))

    def keep(self, place: str, key: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        """Keep a copy of the tensors, as a file would."""
        copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        self._kept[place] = copies, {"key": key, "hash": trees.fingerprint(copies), **metadata}
