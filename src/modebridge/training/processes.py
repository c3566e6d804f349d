"""Several processes that train together (`torchrun`).

Every process runs the same program, draws the same numbers, learns from its own rows of every batch, and averages its
gradient with the others'. So a program for one process also works for many.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor

from modebridge.batches import rows_of
from modebridge.types import Batch


class Processes:
    """A single process; the base class for groups of processes.

    Attributes:
        rank: the index of this process, counted from 0; only process 0 writes files and prints.
        size: the number of processes.
        device: the GPU of this process; None if there is no such choice.
    """

    rank = 0
    size = 1
    device: torch.device | None = None

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of every process's tensor, the same on all."""
        return tensor

    def from_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of process 0."""

    def wait(self) -> None:
        """Wait until all processes get here."""

    def part(self, batch: Batch) -> Batch:
        """This process's rows of a batch, as many as every other process has: the first rows fill up the last ones."""
        count = len(batch[1])
        padded = -(-count // self.size) * self.size
        return rows_of(batch, torch.arange(self.rank, padded, self.size) % count)


class _Group(Processes):
    """The processes of a launcher."""

    def __init__(self, *, cpu: bool) -> None:
        if not cpu:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            dist.init_process_group("gloo" if cpu else "nccl")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def mean(self, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total / self.size

    def from_first(self, tensor: Tensor) -> None:
        dist.broadcast(tensor, 0)

    def wait(self) -> None:
        dist.barrier()


ALONE = Processes()
_group: list[_Group] = []


def launched(*, cpu: bool) -> Processes:
    """The processes of a program that was started by `torchrun` or a similar launcher.

    Args:
        cpu: whether they exchange CPU tensors; the first call decides.
    """
    if not _group:
        _group.append(_Group(cpu=cpu))
    return _group[0]


def leave() -> None:
    """Leave the group, if there is one; must be the last call of a program."""
    if _group:
        dist.barrier()
        dist.destroy_process_group()
