"""The words of the library as types: read this file first.

Axis names used in comments and docstrings: B batch, C channels, H and W height and width, K classes,
M members of an ensemble.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

__all__ = [
    "Batch",
    "Batches",
    "Draw",
    "HasDevice",
    "Inputs",
    "Layout",
    "Objective",
    "Params",
    "Prepared",
    "Program",
    "Progress",
    "State",
    "States",
]

T = TypeVar("T")

Params: TypeAlias = Mapping[str, Tensor]
"""A tree of tensors by name, as `dict(net.named_parameters())` gives it."""

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
"""What a network is called with: images (B, ...), or several tensors by the names of its arguments."""

Batch: TypeAlias = tuple[Inputs, Tensor]
"""Inputs of B images (or texts), and labels (B,) as int64."""

Batches: TypeAlias = Iterable[Batch]
"""Anything that yields batches and can be iterated again: a DataLoader, a list, one of our data sets.

`batches.check_batch` also takes a dict with its labels inside, as Hugging Face's loaders yield.
"""

Draw: TypeAlias = Mapping[str, Tensor]
"""The random choices of one training step (the r of a curve, the lambdas of mixup), made outside the loss."""

Progress: TypeAlias = Callable[[str, int, int, float], None]
"""Told what is being done, how much of it is done, of how much, and at which rate (images per second, 0 if unknown).

It may be called from several threads.
"""

Prepared: TypeAlias = Mapping[str, Tensor]
"""What a step needs beside the states: images, labels, draws, and what frozen networks gave, by name."""


@dataclass(frozen=True)
class State:
    """What training changes: parameters by gradient, buffers (running statistics) by the forward pass."""

    params: Params
    buffers: Params
    frozen: Params = field(default_factory=dict)
    """What the loss needs beside them and training never changes: the ends of a curve."""

    @classmethod
    def split(cls, params: Params, buffers: Params, learns: Container[str]) -> State:
        """The parameters that are named learn, the others are frozen."""
        return cls(
            {name: tensor for name, tensor in params.items() if name in learns},
            buffers,
            {name: tensor for name, tensor in params.items() if name not in learns},
        )

    @property
    def all_params(self) -> dict[str, Tensor]:
        """What learns and what is frozen together, as a network takes them."""
        return {**self.params, **self.frozen}


Layout: TypeAlias = Literal["map", "map, channels last", "sequence", "tokens", "vector"]
"""(C, H, W), (H, W, C), (C, L), (T, C) or (C,)."""

Program: TypeAlias = Callable[[State, Prepared], Tensor]
"""From a member's state and what was prepared for it to its scalar loss."""

States: TypeAlias = Mapping[str, State]
"""One state per member that is trained together; members share batches and nothing else."""


class HasDevice(Protocol):
    """Anything that says where to run: the engine, which lives above the layers that only need its device."""

    @property
    def device(self) -> torch.device:
        """Where tensors go."""
        ...


class Objective(ABC, Generic[T]):
    """What the one training loop trains: modes, curves and bridges differ only here.

    It is pure: its losses depend on its arguments alone, except that the forward pass updates the running statistics in
    `states[...].buffers` in place, as batch norm does.
    """

    @abstractmethod
    def start(self) -> States:
        """The states before the first step."""

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """Every random choice that one step on a batch of `size` images needs; none by default."""
        return {}

    @abstractmethod
    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """All of a step that does not depend on what is trained, by member: mixed images, frozen networks' logits."""

    @abstractmethod
    def program(self, member: str) -> Program:
        """The loss of a member; members of one architecture share one program, so that it is compiled once."""

    @abstractmethod
    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """One number per member, lower is better, by which the best epoch is kept."""

    @abstractmethod
    def result(self, states: States) -> T:
        """What was trained, from the states that were kept."""

    def pace(self, member: str) -> Mapping[str, tuple[float, float]]:
        """Parameters that learn at a pace of their own: which share of the learning rate and of weight decay they get.

        All others get all of both.
        """
        return {}

    # What follows is how steps like to be run; an objective whose `prepare` is cheap and looks at each image by itself
    # leaves it alone.

    @property
    def whole(self) -> bool:
        """Whether each of several processes needs the whole batch to make its part: mixup's partners are anywhere."""
        return False

    @property
    def ahead(self) -> bool:
        """Whether `prepare` is worth doing for the next batch while this one is learned from."""
        return False

    def part(self, batch: Batch, draw: Draw, rows: slice) -> tuple[Batch, Draw]:
        """What one of several processes needs of a batch and its draws to learn from some of its rows."""
        inputs, labels = batch
        if isinstance(inputs, Tensor):
            return (inputs[rows], labels[rows]), draw
        return ({name: tensor[rows] for name, tensor in inputs.items()}, labels[rows]), draw
