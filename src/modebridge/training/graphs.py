"""A step of all tasks as one CUDA graph: one launch, each member on its own stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge.batches import flatten, map_inputs
from modebridge.training.step import Noise, Step
from modebridge.types import Batch, Draw

Fed: TypeAlias = tuple[Batch, Draw]
"""The input of one task in a step, on the device."""


REHEARSALS = 3
"""Warm-up runs: compilation and cuDNN's choice of algorithms cannot be captured, and need a few runs."""


class StepGraph:
    """Replays a captured step; batches of a different size (the last of an epoch) run without a graph.

    So do steps of some tasks only, where others have no batch left (None).
    `run` is the whole step of all tasks, from their batches, draws and learning rate to their losses. It changes
    `steps`, which are restored after the warm-up, and draws from `noises`.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Fed | None], Tensor], list[Tensor]],
        steps: Sequence[Step],
        noises: Sequence[Noise],
        device: torch.device,
    ) -> None:
        self._run, self._steps, self._noises, self._device = run, steps, noises, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._lr = torch.zeros((), device=device)
        # The tensors that the graph reads and writes, always at the same address.
        self._inputs: list[Tensor] = []
        self._losses: list[Tensor] = []

    def __call__(self, fed: Sequence[Fed | None], lr: float) -> list[Tensor]:
        """Run one step of every task; returns the losses (valid until the next call)."""
        self._lr.fill_(lr)
        whole = [one for one in fed if one is not None]
        if len(whole) < len(fed):
            return self._run(fed, self._lr)
        if self._graph is None:
            self._graph = self._captured(whole)
        pairs = list(zip(self._inputs, _tensors(whole), strict=True))
        if any(static.shape != fresh.shape for static, fresh in pairs):
            return self._run(fed, self._lr)
        for noise in self._noises:
            noise.reset()
        for static, fresh in pairs:
            static.copy_(fresh)
        self._graph.replay()
        return self._losses

    def _captured(self, fed: Sequence[Fed]) -> torch.cuda.CUDAGraph:
        static: list[Fed] = [
            (
                (map_inputs(Tensor.clone, batch[0]), batch[1].clone()),
                {name: tensor.clone() for name, tensor in draw.items()},
            )
            for batch, draw in fed
        ]
        self._inputs = _tensors(static)
        # The warm-up must not change the weights.
        before = [{name: tensor.clone() for name, tensor in step.tensors().items()} for step in self._steps]
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(REHEARSALS):
                self._run(static, self._lr)
        torch.cuda.current_stream(self._device).wait_stream(side)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        for noise in self._noises:
            if noise.draws and noise.state is not None:
                graph.register_generator_state(noise.state)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._losses = self._run(static, self._lr)
        for step, saved in zip(self._steps, before, strict=True):
            step.restore(saved)
        return graph


def _tensors(fed: Sequence[Fed]) -> list[Tensor]:
    return [tensor for (images, labels), draw in fed for tensor in (*flatten(images).values(), labels, *draw.values())]
