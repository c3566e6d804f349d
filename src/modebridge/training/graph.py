"""A step of all tasks as one CUDA graph: one launch, every member on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from modebridge.batches import each, named
from modebridge.training.noise import Noise
from modebridge.training.step import Step
from modebridge.types import Batch, Draw

__all__ = ["Fed", "Graphed"]

Fed = tuple[Batch, Draw]
"""What one task is fed with in a step, on the device."""


class Graphed:
    """Replays a captured step; batches of another size than the first (the last of an epoch) run without a graph.

    Args:
        run: the whole step of all tasks, from what they are fed with and the learning rate to their losses.
        steps: what `run` changes, to be put back after the rehearsal.
        noises: what is drawn in `run`.
        device: a CUDA device.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Fed], Tensor], list[Tensor]],
        steps: Sequence[Step],
        noises: Sequence[Noise],
        device: torch.device,
    ) -> None:
        self._run = run
        self._noises = noises
        self._steps = steps
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Fed] = []
        self._outputs: list[Tensor] = []
        self._device = device
        self._lr = torch.zeros((), device=device)

    def __call__(self, fed: Sequence[Fed], lr: float) -> list[Tensor]:
        """One step of every task; returns the losses (valid until the next call)."""
        self._lr.fill_(lr)
        if self._graph is None:
            self._capture(fed)
        assert self._graph is not None
        given, static = _tensors(fed), _tensors(self._inputs)
        if any(a.shape != b.shape for a, b in zip(given, static, strict=True)):
            return self._run(fed, self._lr)
        for a, b in zip(given, static, strict=True):
            b.copy_(a)
        for noise in self._noises:
            noise.reset()
        self._graph.replay()
        return self._outputs

    def _capture(self, fed: Sequence[Fed]) -> None:
        self._inputs = [
            ((each(Tensor.clone, batch[0]), batch[1].clone()), {name: tensor.clone() for name, tensor in draw.items()})
            for batch, draw in fed
        ]
        # Compilation and cuDNN's choice of algorithms need a rehearsal, which must leave no trace in the weights.
        before = [{name: tensor.clone() for name, tensor in step.tensors().items()} for step in self._steps]
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._run(self._inputs, self._lr)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        for noise in self._noises:
            if noise.draws and noise.state is not None:
                graph.register_generator_state(noise.state)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._outputs = self._run(self._inputs, self._lr)
        for step, saved in zip(self._steps, before, strict=True):
            step.restore(saved)
        self._graph = graph


def _tensors(fed: Sequence[Fed]) -> list[Tensor]:
    return [tensor for (images, labels), draw in fed for tensor in (*named(images).values(), labels, *draw.values())]
