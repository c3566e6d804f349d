"""Artefacts: what a run computes and keeps; a node of its graph, before it is computed."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeAlias

from torch import Tensor

from modebridge.members.setting import Setting
from modebridge.recipes import Recipe
from modebridge.training import TrainConfig

__all__ = ["Artefact", "ArtefactData", "Parents", "Tensors", "TrainedWeights", "key_of"]

Tensors: TypeAlias = Mapping[str, Tensor]
Parents: TypeAlias = Mapping[str, Tensors]
"""The tensors of all parents, by place."""

Together: TypeAlias = Literal["one", "several", "all"]
"""How many of a kind are made together: one; several on a GPU, as the recipe says; all in one pass."""


@dataclass(frozen=True)
class ArtefactData:
    """The result of making an artefact: its tensors, and metadata to keep with them."""

    tensors: Tensors
    metadata: Mapping[str, Any] = field(default_factory=dict)


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
    together: ClassVar[Together] = "one"
    """How many of its kind are made together."""
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
    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Everything that determines it besides its parents; a different value gives a different artefact."""

    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings that determine it; by default it is not trained."""
        return TrainConfig(epochs=0)

    def epochs(self, recipe: Recipe) -> int:
        """Number of training epochs."""
        return self.training(recipe).epochs

    @classmethod
    @abstractmethod
    def make(
        cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig
    ) -> dict[str, ArtefactData]:
        """Make a group of them together; returns the results by name.

        Args:
            group: what to make.
            setting: recipe, data and network.
            parents: the tensors of all parents.
            config: the training settings of the group with device, checkpoints and callbacks. What is not trained
                reports its batches to the callbacks instead of epochs.
        """

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        """Multiply-adds per image and epoch for making a group of them together."""
        return 0.0


class TrainedWeights(Artefact):
    """Weights that are trained, by default with the work of one network each."""

    trained = True
    together = "several"

    @abstractmethod
    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings."""

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        """One forward and one backward pass for each; a backward pass counts as two forward passes."""
        return 3 * setting.base_cost.flops * len(group)


def key_of(*parts: object) -> str:
    """A hash of everything that determines an artefact."""
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()
