"""All tasks' steps as one CUDA graph: a launch for a whole step, tasks on streams of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from modebridge.training.engine import Engine
from modebridge.training.step import Step
from modebridge.types import Prepared

__all__ = ["GraphedSteps"]


class GraphedSteps:
    """Replays a captured step; batches of another size than the first (the last of an epoch) run without a graph.

    Args:
        steps: one per task; they are captured together at the first call.
        engine: a CUDA engine.
    """

    def __init__(self, steps: Sequence[Step], engine: Engine) -> None:
        self._steps = steps
        self._engine = engine
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[dict[str, Tensor]] = []
        self._outputs: list[Tensor] = []
        self._lr = torch.zeros((), device=engine.device)
        self._streams = [_stream(engine) for _ in steps]

    def __call__(self, prepared: Sequence[Prepared], lr: float) -> list[Tensor]:
        """One step of every task; returns the losses of each (valid until the next call)."""
        self._lr.fill_(lr)
        if self._graph is None:
            self._capture(prepared)
        assert self._graph is not None
        if not all(_fits(given, static) for given, static in zip(prepared, self._inputs, strict=True)):
            return [step(given, self._lr) for step, given in zip(self._steps, prepared, strict=True)]
        for given, static in zip(prepared, self._inputs, strict=True):
            for name, tensor in static.items():
                tensor.copy_(given[name])
        self._graph.replay()
        return self._outputs

    def _capture(self, prepared: Sequence[Prepared]) -> None:
        self._inputs = [{name: tensor.clone() for name, tensor in given.items()} for given in prepared]
        # Compilation and cuDNN's choice of algorithms need a rehearsal, which must leave no trace in the weights.
        before = [{name: tensor.clone() for name, tensor in step.tensors().items()} for step in self._steps]
        side = _stream(self._engine)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._run()
        for step, saved in zip(self._steps, before, strict=True):
            step.restore(saved)
        self._graph = graph

    def _run(self) -> None:
        main = torch.cuda.current_stream()
        outputs: list[Tensor] = []
        for step, inputs, stream in zip(self._steps, self._inputs, self._streams, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                outputs.append(step(inputs, self._lr))
        for stream in self._streams:
            main.wait_stream(stream)
        self._outputs = outputs


def _stream(engine: Engine) -> torch.cuda.Stream:
    return torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]


def _fits(given: Prepared, static: Prepared) -> bool:
    return all(given[name].shape == tensor.shape for name, tensor in static.items())
