"""Artefacts: what a run computes and keeps; a node of its graph, before it is computed."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

from torch import Tensor

from modebridge.members.context import Blueprint, Context
from modebridge.recipes import Recipe
from modebridge.training import Checkpoints, Report, TrainConfig

__all__ = ["Artefact", "ArtefactData", "Making", "Tensors", "TrainedWeights", "key_of"]

Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True)
class ArtefactData:
    """The result of making an artefact: its tensors, and metadata to keep with them."""

    tensors: Tensors
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Making:
    """The inputs for making artefacts.

    Args:
        context: network, data and device.
        parents: the tensors of all parents, by place.
        checkpoints: where to save progress and resume from.
        report: called after every epoch, with losses by artefact name, or as "0/..." by its number in the group.
    """

    context: Context
    parents: Mapping[str, Tensors]
    checkpoints: Checkpoints | None = None
    report: Report | None = None


class Artefact(ABC):
    """A frozen dataclass that describes what an artefact is made from and how; can be pickled, holds no weights."""

    folder: ClassVar[str]
    """The folder it is kept in: RUN/FOLDER/NAME."""
    stage: ClassVar[str]
    """The name of this stage in progress and times."""
    trained: ClassVar[bool] = False
    """Whether it is trained, with epochs, checkpoints and metrics."""
    one_core: ClassVar[bool] = True
    """Whether several are made in parallel on a CPU, one core each, instead of one after another on all cores."""
    counted: ClassVar[bool] = False
    """Whether progress counts finished artefacts of this kind, which have neither epochs nor batches to count."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in the folder."""

    @property
    def place(self) -> str:
        """Its path in the run folder, used to refer to it everywhere."""
        return f"{self.folder}/{self.name}"

    @classmethod
    def step(cls) -> str:
        """Its name in plans: that of its folder, unless several kinds share the folder."""
        return cls.folder

    def parents(self, recipe: Recipe) -> tuple[Artefact, ...]:
        """The artefacts that must be made first, and are passed to `make`."""
        return ()

    @abstractmethod
    def ingredients(self, context: Context) -> dict[str, object]:
        """Everything that determines it besides its parents; a different value gives a different artefact."""

    def epochs(self, recipe: Recipe) -> int:
        """Number of training epochs."""
        return 0

    def together(self, context: Context) -> int:
        """How many of its kind are made together."""
        return 1

    @classmethod
    @abstractmethod
    def make(cls, group: Sequence[Self], making: Making) -> dict[str, ArtefactData]:
        """Make a group of them together; returns the results by name."""

    @classmethod
    def work(cls, group: Sequence[Self], blueprint: Blueprint) -> float:
        """Multiply-adds per image and epoch for making a group of them together."""
        return 0.0


class TrainedWeights(Artefact):
    """Weights that are trained, by default with the work of one network each."""

    trained = True
    one_pass: ClassVar[bool] = False
    """Whether all missing ones are trained in one pass, so that every frozen network runs once per batch."""

    @abstractmethod
    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings."""

    def epochs(self, recipe: Recipe) -> int:
        """Those of its training settings."""
        return self.training(recipe).epochs

    def together(self, context: Context) -> int:
        """All of them in one pass, or several on a GPU."""
        return 10**6 if self.one_pass else context.together

    @classmethod
    def work(cls, group: Sequence[Self], blueprint: Blueprint) -> float:
        """One forward and one backward pass for each; a backward pass counts as two forward passes."""
        return 3 * blueprint.base_cost.flops * len(group)


def key_of(*parts: object) -> str:
    """A hash of everything that determines an artefact."""
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()
