"""The words of the library as types: read this file first.

Axis names used in comments and docstrings: B batch, C channels, H and W height and width, K classes,
M members of an ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

__all__ = [
    "Batch",
    "Batches",
    "Draw",
    "HasDevice",
    "Inputs",
    "Objective",
    "Params",
    "Prepared",
    "Program",
    "Progress",
    "State",
    "States",
]

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
"""What a step needs beside the states: images, labels, draws, and whatever frozen networks said, by name."""


@dataclass(frozen=True)
class State:
    """What training changes: parameters by gradient, buffers (running statistics) by the forward pass."""

    params: Params
    buffers: Params
    frozen: Params = field(default_factory=dict)
    """What the loss needs beside them and training never changes: the ends of a curve."""


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


class Objective(Protocol):
    """What the one training loop trains: modes, curves and bridges differ only here.

    It holds an architecture and no weights, so that one objective (and one compilation of it) serves many tasks. It is
    pure: its losses depend on its arguments alone, except that the forward pass updates the
    running statistics in `states[...].buffers` in place, as batch norm does.
    """

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """Every random choice that one step on a batch of `size` images needs."""
        ...

    @property
    def whole(self) -> bool:
        """Whether each of several processes needs the whole batch to make its part: mixup's partners are anywhere."""
        ...

    def part(self, batch: Batch, draw: Draw, rows: slice) -> tuple[Batch, Draw]:
        """What one of several processes needs of a batch and its draws to learn from some of its rows."""
        ...

    @property
    def ahead(self) -> bool:
        """Whether `prepare` is worth doing for the next batch while this one is learned from."""
        ...

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """All of a step that does not depend on what is trained, by member: mixed images, frozen networks' answers."""
        ...

    def program(self, member: str) -> Program:
        """The loss of a member; members of one architecture share one program, so that it is compiled once."""
        ...

    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """One number per member, lower is better, by which the best epoch is kept."""
        ...
