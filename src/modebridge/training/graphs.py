"""A step of all tasks as one CUDA graph: one launch, each member on its own stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.batches import flatten, map_inputs
from modebridge.nets import CudaGraph
from modebridge.training.step import Noise, Step
from modebridge.types import Batch, Draw

Fed: TypeAlias = tuple[Batch, Draw]
"""The input of one task in a step, on the device."""


class StepGraph:
    """Replays a captured step; batches of a different size (the last of an epoch) run without a graph.

    `run` is the whole step of all tasks, from their batches, draws and learning rate to their losses. It changes
    `steps`, which are restored after the warm-up, and draws from `noises`.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Fed], Tensor], list[Tensor]],
        steps: Sequence[Step],
        noises: Sequence[Noise],
        device: torch.device,
    ) -> None:
        self._run, self._steps, self._noises, self._device = run, steps, noises, device
        self._graph: CudaGraph[list[Tensor]] | None = None
        self._lr = torch.zeros((), device=device)

    def __call__(self, fed: Sequence[Fed], lr: float) -> list[Tensor]:
        """Run one step of every task; returns the losses (valid until the next call)."""
        self._lr.fill_(lr)
        if self._graph is None:
            self._graph = self._captured(fed)
        tensors = _tensors(fed)
        if not self._graph.fits(tensors):
            return self._run(fed, self._lr)
        for noise in self._noises:
            noise.reset()
        return self._graph(tensors)

    def _captured(self, fed: Sequence[Fed]) -> CudaGraph[list[Tensor]]:
        static: list[Fed] = [
            (
                (map_inputs(Tensor.clone, batch[0]), batch[1].clone()),
                {name: tensor.clone() for name, tensor in draw.items()},
            )
            for batch, draw in fed
        ]
        # The warm-up must not change the weights.
        before = [{name: tensor.clone() for name, tensor in step.tensors().items()} for step in self._steps]
        graph = CudaGraph(
            lambda: self._run(static, self._lr),
            _tensors(static),
            self._device,
            generators=lambda: [noise.state for noise in self._noises if noise.draws and noise.state is not None],
            error_mode="thread_local",
        )
        for step, saved in zip(self._steps, before, strict=True):
            step.restore(saved)
        return graph


def _tensors(fed: Sequence[Fed]) -> list[Tensor]:
    return [tensor for (images, labels), draw in fed for tensor in (*flatten(images).values(), labels, *draw.values())]
