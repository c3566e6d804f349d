"""A step of all tasks as one CUDA graph: one launch, each member on its own stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from modebridge.batches import flatten, map_inputs
from modebridge.training.step import Noise, Step
from modebridge.types import Batch, Draw

T = TypeVar("T")

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


REHEARSALS = 3
"""Warm-up runs: compilation and cuDNN's choice of algorithms cannot be captured, and need a few runs."""


class CudaGraph(Generic[T]):
    """A captured function with the tensors that it reads.

    `function` takes no arguments. It reads `inputs`, tensors on the GPU into which new values are copied for replays,
    and other tensors that stay at their address. It runs a few times before it is captured; the caller restores what
    it changes. `generators` is called after the warm-up and returns those that the function draws from; `error_mode`
    says which calls are forbidden during capture, see `torch.cuda.graph`.
    """

    def __init__(
        self,
        function: Callable[[], T],
        inputs: Sequence[Tensor],
        device: torch.device,
        *,
        generators: Callable[[], Iterable[torch.Generator]] = tuple,
        error_mode: str = "global",
    ) -> None:
        self._inputs = inputs
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(REHEARSALS):
                function()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        for generator in generators():
            self._graph.register_generator_state(generator)
        with torch.cuda.graph(self._graph, capture_error_mode=error_mode):
            self._outputs = function()

    def fits(self, fresh: Sequence[Tensor]) -> bool:
        """Whether these inputs have the captured shapes."""
        return all(a.shape == b.shape for a, b in zip(fresh, self._inputs, strict=True))

    def __call__(self, fresh: Sequence[Tensor]) -> T:
        """The function's outputs on new inputs, in memory that the next call overwrites."""
        for static, tensor in zip(self._inputs, fresh, strict=True):
            static.copy_(tensor)
        self._graph.replay()
        return self._outputs
