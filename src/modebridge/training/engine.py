"""Device, precision and speed in one record: the only place that knows what a GPU is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from modebridge.errors import ModebridgeError

__all__ = ["Engine"]

F = TypeVar("F")


@dataclass(frozen=True)
class Engine:
    """How to run: where, in which precision, compiled or not.

    Args:
        device: "cpu", "cuda" or "cuda:1".
        bf16: convolutions and products in bfloat16; weights, gradients' sums and the update stay fp32.
        compile: fuse the losses and their gradient by torch.compile; costs most of a minute once per architecture.
        graphs: replay a whole step (all tasks, each on a stream of its own) as one CUDA graph.

    >>> Engine().device
    device(type='cpu')
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    bf16: bool = False
    compile: bool = False
    graphs: bool = False

    def __post_init__(self) -> None:
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ModebridgeError(
                "Expected a CUDA device, but torch sees none on this machine; use the CPU or install torch for CUDA."
            )
        if self.graphs and self.device.type != "cuda":
            raise ModebridgeError(f"Expected graphs on a CUDA device, but got {self.device}; set graphs=False.")

    @classmethod
    def best(cls) -> Engine:
        """Everything that is fast on this machine: a compiled bf16 graph on a GPU, plain fp32 on a CPU."""
        if torch.cuda.is_available():
            return cls(torch.device("cuda"), bf16=True, compile=True, graphs=True)
        return cls()

    def compiled(self, function: F) -> F:
        """The function, compiled for fixed shapes where asked for."""
        if not self.compile:
            return function
        compiled: Any = torch.compile(function, dynamic=False)  # type: ignore[call-overload]
        return compiled  # type: ignore[no-any-return]

    def moved(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors on our device; copies from pinned memory do not wait."""
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in tensors.items()}
