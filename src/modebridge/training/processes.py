"""Several processes that train together (`torchrun`).

Every process runs the same program, draws the same numbers, learns from its own rows of every batch, and averages its
gradient with the others'. So a program for one process also works for many.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from modebridge.batches import rows_of
from modebridge.errors import ModebridgeError
from modebridge.types import Batch


@dataclass(frozen=True)
class Processes:
    """The processes that train together; by default this one alone, which has nothing to exchange.

    Args:
        rank: the index of this process, counted from 0; only process 0 writes files and prints.
        size: the number of processes.
        device: the GPU of this process; None if there is no such choice.
    """

    rank: int = 0
    size: int = 1
    device: torch.device | None = None

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of every process's tensor, the same on all."""
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total / self.size

    def from_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of process 0."""
        dist.broadcast(tensor, 0)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def part(self, batch: Batch) -> Batch:
        """This process's rows of a batch, as many as every other process has: the first rows fill up the last ones."""
        count = len(batch[1])
        padded = -(-count // self.size) * self.size
        return rows_of(batch, torch.arange(self.rank, padded, self.size) % count)


@cache
def launched(*, cpu: bool) -> Processes:
    """The processes that `torchrun` or a similar launcher started; `cpu` is whether they exchange CPU tensors."""
    device = None if cpu else torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if device is not None:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("gloo" if cpu else "nccl")
    return Processes(dist.get_rank(), dist.get_world_size(), device)


def leave() -> None:
    """Leave the group, if there is one; must be the last call of a program."""
    if launched.cache_info().currsize:
        dist.barrier()
        dist.destroy_process_group()


def find_device(given: torch.device | str) -> torch.device:
    """The device of a name; raises an error if there is none."""
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ModebridgeError(
            f"Expected device to be 'cpu', 'cuda', 'cuda:1' or a torch.device, but got {given!r}; use one of them."
        ) from error
    count = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(device.type)
    if count is not None and (device.index or 0) >= count:
        raise ModebridgeError(
            f"Expected a GPU for device '{given}', but torch sees {count or 'none'} of that kind here; use "
            f"{'a lower number' if count else 'cpu, or install a build of torch for your GPU'}."
        )
    return device
