"""What a run makes and keeps: a node of its graph, before anything of it is made."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

from torch import Tensor

from modebridge.members.context import Blueprint, Context
from modebridge.recipes import Recipe
from modebridge.training import Checkpoints, Report

__all__ = ["Artefact", "Made", "Making", "Tensors", "key_of"]

Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True)
class Made:
    """What came out of making an artefact: its tensors, and metadata worth keeping with them."""

    tensors: Tensors
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Making:
    """All that the making of artefacts may use.

    Args:
        context: network, data and device.
        parents: the tensors of all their parents, by place.
        checkpoints: where to save on the way and to go on from.
        report: told of every epoch; losses by the artefacts' names, or as "0/..." by their number in the group.
    """

    context: Context
    parents: Mapping[str, Tensors]
    checkpoints: Checkpoints | None = None
    report: Report | None = None


class Artefact(ABC):
    """A frozen record that says what an artefact is made from and how; it can be pickled and holds no weights."""

    folder: ClassVar[str]
    """Where it is kept: RUN/FOLDER/NAME."""
    stage: ClassVar[str]
    """What progress and times call the making of such artefacts."""
    trained: ClassVar[bool] = False
    """Whether making it is training, with epochs, checkpoints and metrics."""
    one_core: ClassVar[bool] = True
    """Whether several are made side by side on a CPU, one core each, rather than one after another on all cores."""
    counted: ClassVar[bool] = False
    """Whether progress counts finished artefacts of this kind, which have neither epochs nor batches to count."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in the folder."""

    @property
    def place(self) -> str:
        """Its path in the run folder, which is how everything refers to it."""
        return f"{self.folder}/{self.name}"

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """What must be made before it, and is given to `make`."""
        return ()

    @abstractmethod
    def ingredients(self, context: Context) -> dict[str, object]:
        """All that it is made from beside its parents; another ingredient, another artefact."""

    def epochs(self, recipe: Recipe) -> int:
        """How long it is trained."""
        return 0

    def together(self, context: Context) -> int:
        """How many of its kind are made in one go."""
        return 1

    @classmethod
    @abstractmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, Made]:
        """Make some of them in one go; returns what was made, by name."""

    @classmethod
    def work(cls, group: Sequence[Self], blueprint: Blueprint) -> float:
        """Multiply-adds of making some of them in one go, for each image and epoch."""
        return 0.0


def key_of(*parts: object) -> str:
    """A hash of everything that an artefact is made from."""
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()
