"""One step of SGD on a task: losses, gradient, update. The same code runs on CPUs, compiled, and inside a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge import trees
from modebridge.training.config import TrainConfig
from modebridge.training.flat import Layout
from modebridge.types import Objective, Params, Prepared, State, States

__all__ = ["Forward", "Step", "make_forward", "sgd_"]

Forward: TypeAlias = Callable[[Tensor, Mapping[str, Params], Mapping[str, Params], Prepared], Tensor]
"""From the vector of parameters, buffers, frozen tensors and a prepared batch to the members' losses."""


def make_forward(objective: Objective, layout: Layout) -> Forward:
    """The losses as a function of plain tensors, so that one compilation serves every task of an architecture."""

    def forward(
        flat: Tensor, buffers: Mapping[str, Params], frozen: Mapping[str, Params], prepared: Prepared
    ) -> Tensor:
        states = {
            member: State(params, buffers[member], frozen[member]) for member, params in layout.views(flat).items()
        }
        return torch.stack(list(objective.losses(states, prepared).values()))

    return forward


def sgd_(flat: Tensor, momentum: Tensor, gradient: Tensor, lr: Tensor | float, config: TrainConfig) -> None:
    """SGD in place, as torch's: weight decay joins the gradient, the buffer is momentum * buffer + gradient.

    Written in operations that round once each, so that a number's result does not depend on its place in the vector.
    """
    if config.weight_decay:
        gradient = gradient + flat * config.weight_decay
    momentum.mul_(config.momentum).add_(gradient)
    if config.nesterov == "standard":
        gradient = gradient + momentum * config.momentum
    elif config.nesterov == "authors":
        gradient = gradient + momentum
    else:
        gradient = momentum
    flat.sub_(gradient * lr)


class Step:
    """The training state of one task, and the step that moves it.

    Args:
        start: the states to begin from; they are copied.
        layout: of those states.
        forward: from `make_forward`, compiled or not.
        config: the optimiser.
        device: where to train.
        bf16: whether convolutions and products run in bfloat16.
    """

    def __init__(
        self,
        start: States,
        layout: Layout,
        forward: Forward,
        config: TrainConfig,
        device: torch.device,
        *,
        bf16: bool = False,
    ) -> None:
        self.layout = layout
        self.members = list(start)
        self.flat = layout.pack(start).to(device).requires_grad_()
        self.momentum = torch.zeros_like(self.flat, requires_grad=False)
        self.buffers = {m: _to(trees.clone(s.buffers), device) for m, s in start.items()}
        self.frozen = {m: _to(s.frozen, device) for m, s in start.items()}
        self._forward = forward
        self._config = config
        self._bf16 = bf16

    def __call__(self, prepared: Prepared, lr: Tensor | float) -> Tensor:
        """Learn from one prepared batch; returns the members' losses, detached."""
        with self._precision():
            losses = self._forward(self.flat, self.buffers, self.frozen, prepared)
        (gradient,) = torch.autograd.grad(losses.sum(), self.flat)
        with torch.no_grad():
            sgd_(self.flat, self.momentum, gradient, lr, self._config)
        return losses.detach()

    def states(self) -> States:
        """The present states; parameters are views of the vector."""
        views = self.layout.views(self.flat.detach())
        return {m: State(views[m], self.buffers[m], self.frozen[m]) for m in self.members}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name: what a checkpoint saves and a rehearsal puts back."""
        named = {f"buffers/{m}/{name}": t for m, tree in self.buffers.items() for name, t in tree.items()}
        return {"flat": self.flat.detach(), "momentum": self.momentum, **named}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put saved tensors back, in place: graphs and views stay valid."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(saved[name])

    def _precision(self) -> AbstractContextManager[object]:
        if not self._bf16:
            return nullcontext()
        return torch.autocast(self.flat.device.type, dtype=torch.bfloat16)


def _to(tree: Params, device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tree.items()}
