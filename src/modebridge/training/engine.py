"""Device, precision and speed in one record: the only place that knows what a GPU is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from modebridge.batches import Mapped, map_inputs
from modebridge.ensembles import Bases
from modebridge.errors import ModebridgeError
from modebridge.training.config import TrainConfig
from modebridge.training.processes import ALONE, Processes, launched
from modebridge.types import Batch, Batches, Draw

PROGRAMS = 512
"""How many programs one process may compile: more than a study has bridges."""

F = TypeVar("F")
T = TypeVar("T")


@dataclass(frozen=True)
class Engine:
    """How to run: device, precision, compiled or not; in one process or in all that `torchrun` started.

    Args:
        device: where.
        bf16: use bfloat16 for convolutions and products; weights, gradient sums and the update stay fp32.
        compile: fuse the losses and their gradient with torch.compile; takes most of a minute once per architecture.
    """

    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    bf16: bool = False
    compile: bool = False

    @classmethod
    def of(cls, config: TrainConfig, net: nn.Module | None = None) -> Engine:
        """The engine that a config asks for; on a GPU compiled and in bf16, on a CPU plain fp32, unless it is chosen.

        Args:
            config: device, precision and compile.
            net: the network whose device "auto" prefers, if that is a GPU.
        """
        given = config.device
        if given == "auto":
            here = None if net is None else next((tensor.device for tensor in net.state_dict().values()), None)
            given = here if here and here.type == "cuda" else "cuda" if torch.cuda.is_available() else "cpu"
        device = _device(given)
        gpu = device.type == "cuda"
        if str(device) == "cuda":
            device = cls(device).processes.device or device
        bf16 = gpu if config.precision == "auto" else config.precision == "bf16"
        return cls(device, bf16, gpu if config.compile is None else config.compile)

    @property
    def graphs(self) -> bool:
        """Whether to replay a whole step (all tasks, each on its own stream) as one CUDA graph.

        Not in several processes, which average their gradients before the update.
        """
        return self.compile and self.device.type == "cuda" and self.processes.size == 1

    @property
    def way(self) -> str:
        """How steps are run, as far as a checkpoint depends on it: "bf16 together", "fp32 in turn"."""
        return f"{'bf16' if self.bf16 else 'fp32'} {'together' if self.graphs else 'in turn'}"

    @property
    def processes(self) -> Processes:
        """The processes that train together: one, unless a launcher started more."""
        return launched(cpu=self.device.type == "cpu") if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ALONE

    def precision(self) -> AbstractContextManager[object]:
        """Autocast to bfloat16 if enabled."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext()

    def compiled(self, function: F) -> F:
        """The function, compiled for fixed shapes if enabled."""
        if not self.compile:
            return function
        # The compiler counts programs of one kind as recompiled versions of one function, and its limit is too low.
        for limit in ("recompile_limit", "accumulated_recompile_limit"):
            setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), PROGRAMS))
        compiled: Any = torch.compile(function, dynamic=False)  # type: ignore[call-overload]
        return compiled  # type: ignore[no-any-return]

    def feed(self, batches: Batches) -> Batches:
        """The same batches on our device."""
        return batches if self.device.type == "cpu" else Mapped(batches, lambda batch: self.moved(batch, {})[0])

    def moved(self, batch: Batch, draw: Draw) -> tuple[Batch, Draw]:
        """A batch and its draws on our device; copies from pinned memory are asynchronous."""
        images = map_inputs(lambda tensor: tensor.to(self.device, non_blocking=True), batch[0])
        labels = batch[1].to(self.device, non_blocking=True)
        # float64 is slow on a GPU and does not help a step; numbers are drawn in float64 on the CPU.
        moved = {
            name: tensor.to(self.device, torch.float32 if tensor.is_floating_point() else None, non_blocking=True)
            for name, tensor in draw.items()
        }
        return (images, labels), moved if self.device.type != "cpu" else draw

    def speed_up(self, bases: Bases[Any]) -> None:
        """Compile the forward pass of frozen networks, and run them in parallel streams, where that is enabled."""
        bases.run = self.compiled(bases.run)
        bases.fan_out = self.fan_out

    def fan_out(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run independent jobs and return their results; during graph capture each gets its own stream.

        Outside of a capture they run one after another: memory of one stream must not be reused by another while it is
        still being read. A graph's own pool takes care of that.
        """
        if self.device.type != "cuda" or len(jobs) < 2 or not torch.cuda.is_current_stream_capturing():
            return [job() for job in jobs]
        main = torch.cuda.current_stream()
        results: list[T] = []
        for k, job in enumerate(jobs):
            stream = _stream(self.device, k)
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                results.append(job())
        for k in range(len(jobs)):
            main.wait_stream(_stream(self.device, k))
        return results


def _device(given: torch.device | str) -> torch.device:
    """An available device, from its name."""
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ModebridgeError(
            f"Expected device to be 'cpu', 'cuda', 'cuda:1' or a torch.device, but got {given!r}; use one of them."
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModebridgeError(
            "Expected a CUDA device, but torch sees none on this machine; use the CPU or install torch for CUDA."
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModebridgeError(
            f"Expected device to be one of the {torch.cuda.device_count()} GPUs of this machine, but got '{device}'; "
            "they are counted from cuda:0."
        )
    return device


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
