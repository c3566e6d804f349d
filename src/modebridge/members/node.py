"""Nodes: what a run makes and keeps, before it is made; together they are the graph of a run."""

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

Tensors: TypeAlias = Mapping[str, Tensor]
Parents: TypeAlias = Mapping[str, Tensors]
"""The tensors of all parents, by place."""

Together: TypeAlias = Literal["one", "several", "all"]
"""How many nodes of a step are made together: one; several on a GPU, as the recipe says; all in one pass."""


@dataclass(frozen=True)
class ArtefactData:
    """The result of making a node: its tensors, and metadata to keep with them."""

    tensors: Tensors
    metadata: Mapping[str, Any] = field(default_factory=dict)


Made: TypeAlias = dict[str, ArtefactData]
"""The results of making nodes, by name."""


class Node(ABC):
    """A frozen dataclass that says what something is made from and how; can be pickled, holds no weights."""

    folder: ClassVar[str]
    """The folder it is kept in."""
    stage: ClassVar[str]
    """The name of this work in progress and times."""
    trained: ClassVar[bool] = False
    """Whether it is trained, with epochs, checkpoints and metrics."""
    one_core: ClassVar[bool] = True
    """Whether several are made in parallel on a CPU, one core each, instead of one after another on all cores."""
    together: ClassVar[Together] = "one"
    """How many of its step are made together."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name."""

    @property
    def place(self) -> str:
        """Its path in the run folder, used to refer to it everywhere."""
        return f"{self.folder}/{self.name}"

    @property
    def label(self) -> str:
        """Its name in its folder."""
        return self.place.partition("/")[2]

    @classmethod
    def step(cls) -> str:
        """Nodes of one step are made together; the name of its folder, unless several steps share the folder."""
        return cls.folder

    def parents(self, recipe: Recipe) -> tuple[Node, ...]:
        """The nodes that must be made first, and are passed to `make`."""
        return ()

    @abstractmethod
    def ingredients(self, setting: Setting) -> dict[str, object]:
        """Everything that determines it besides its parents; a different value makes it again."""

    def training(self, recipe: Recipe) -> TrainConfig:
        """The training settings; by default it is not trained."""
        return TrainConfig(epochs=0)

    def epochs(self, recipe: Recipe) -> int:
        """Number of training epochs."""
        return self.training(recipe).epochs

    @classmethod
    @abstractmethod
    def make(cls, group: Sequence[Self], setting: Setting, parents: Parents, config: TrainConfig) -> Made:
        """Make nodes of one step together; returns the results by name.

        Args:
            group: what to make.
            setting: recipe, data and network.
            parents: the tensors of all parents.
            config: the training settings of the group with device, checkpoints and callbacks. What is not trained
                reports its batches to the callbacks instead of epochs.
        """

    @classmethod
    def work(cls, group: Sequence[Self], setting: Setting) -> float:
        """Multiply-adds per image and epoch of training a group together, by default that of one network each.

        A backward pass counts as two forward passes.
        """
        return 3 * setting.base_cost.flops * len(group)


def key_of(*parts: object) -> str:
    """A hash of everything that determines a node."""
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()
