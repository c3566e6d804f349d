"""A function as a CUDA graph: warmed up, captured once, and replayed on new inputs with one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["CudaGraph"]

T = TypeVar("T")

REHEARSALS = 3
"""Warm-up runs: compilation and cuDNN's choice of algorithms cannot be captured, and need a few runs."""


class CudaGraph(Generic[T]):
    """A captured function with the tensors that it reads.

    Args:
        function: takes no arguments; reads `inputs` and tensors that stay at their address. It runs a few times before
            it is captured; the caller restores what it changes.
        inputs: tensors on the GPU; new values are copied into them before a replay.
        device: the GPU.
        generators: called after the warm-up, returns the generators that the function draws from.
        error_mode: which calls are forbidden during capture, see `torch.cuda.graph`.
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
