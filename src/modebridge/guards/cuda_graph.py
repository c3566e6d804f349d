"""A function as a CUDA graph: rehearsed, captured once, and replayed on fresh inputs by one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["CudaGraph"]

T = TypeVar("T")

REHEARSALS = 3
"""Compilation and cuDNN's choice of algorithms cannot be captured: they are over after a few runs."""


class CudaGraph(Generic[T]):
    """A function that was captured with the tensors that it reads.

    Args:
        function: without arguments; reads `inputs` and tensors that stay where they are. It runs a few times before it
            is captured: what it changes is for the caller to put back.
        inputs: on the GPU, kept; fresh numbers are copied into them before a replay.
        device: the GPU.
        generators: asked after the rehearsals for the states that the function draws from.
        error_mode: which calls are refused while it is captured, see `torch.cuda.graph`.
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
        """Whether these inputs have the shapes that were captured."""
        return all(a.shape == b.shape for a, b in zip(fresh, self._inputs, strict=True))

    def __call__(self, fresh: Sequence[Tensor]) -> T:
        """The function's outputs on fresh inputs; they lie in memory that the next call writes over."""
        for static, tensor in zip(self._inputs, fresh, strict=True):
            static.copy_(tensor)
        self._graph.replay()
        return self._outputs
