"""The library's vocabulary as types: read this file first.

Axis names used in comments and docstrings: B batch, C channels, H and W height and width, K classes,
M members of an ensemble, P places, such as pixels, if a network classifies each of them (segmentation).

Outside, classes are the second axis, (B, K, *P), as in torch: networks, bodies, predictions, files. Inside they are the
last one, (B, *P, K), so that the same lines serve images and pixels: `nets.classes_last` is the way in, `second` out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from modebridge.trees import Params as Params, State as State

T = TypeVar("T")

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
"""The inputs of a network: images (B, ...), or several tensors by argument name."""

Batch: TypeAlias = tuple[Inputs, Tensor]
"""Inputs for B images (or texts), and int64 labels (B,), or (B, *P) with `IGNORED` for places without one."""

Batches: TypeAlias = Iterable[Batch]
"""Anything that yields batches and can be iterated again: a DataLoader, a list, one of our data sets.

`batches.check_batch` also takes a dict that contains its labels, as Hugging Face loaders yield.
"""

Draw: TypeAlias = Mapping[str, Tensor]
"""The random choices of one training step (r of a curve, lambdas of mixup), drawn outside the loss."""

Progress: TypeAlias = Callable[[str, int, int, float], None]
"""Progress callback: task, steps done, total steps, and rate (images per second, 0 if unknown).

It may be called from several threads.
"""

Prepared: TypeAlias = Mapping[str, Tensor]
"""Inputs of a step besides the states, by name: images, labels, draws, and outputs of frozen networks."""


Layout: TypeAlias = Literal["map", "map, channels last", "sequence", "volume", "tokens", "vector"]
"""(C, H, W), (H, W, C), (C, L), (C, D, H, W), (T, C) or (C,)."""

IGNORED = -100
"""The label of a place that does not count, as in torch's cross entropy."""

Program: TypeAlias = Callable[[State, Prepared], Tensor]
"""Maps a member's state and prepared inputs to its scalar loss."""

States: TypeAlias = Mapping[str, State]
"""One state per member; members trained together share only the batches."""


class Objective(ABC, Generic[T]):
    """What the training loop optimizes: modes, curves and bridges differ only here.

    It is pure: losses depend only on the arguments, except that the forward pass updates the running statistics in
    `states[...].buffers` in place, as batch norm does.
    """

    @abstractmethod
    def start(self) -> States:
        """The states before the first step."""

    def draw(self, size: int, generator: torch.Generator) -> Draw:
        """All random choices of one step on a batch of `size` images; none by default."""
        return {}

    @abstractmethod
    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """The part of a step that does not depend on the trained weights, by member: mixed images, frozen logits."""

    @abstractmethod
    def program(self, member: str) -> Program:
        """The loss of a member; members of one architecture share a program, so it is compiled once."""

    @abstractmethod
    def validate(self, states: States, batches: Batches) -> Mapping[str, float]:
        """One number per member, lower is better, to select the best epoch."""

    @abstractmethod
    def result(self, states: States) -> T:
        """The trained object, from the selected states."""
