"""Several processes as one: what `torchrun` started, and the few operations that they share.

Every process runs the same program, takes its own rows of every batch, and adds its gradient to the others'. Nothing
else is shared, so a program for one process also works for many.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor, nn

from modebridge.errors import ModebridgeError
from modebridge.modes import refresh_statistics
from modebridge.types import Batch, Batches, Params

__all__ = ["Processes", "Turns", "launched", "leave"]


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

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor, the same on all."""
        return tensor

    def from_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of process 0."""

    def wait(self) -> None:
        """Wait until all processes get here."""

    def leave(self) -> None:
        """Leave the group; must be the last call of a program."""

    def rows(self, count: int) -> tuple[slice, float]:
        """This process's rows of a batch of `count`, and their weight in its mean.

        A process without rows (the last batch can be smaller than the group) takes the first row with weight 0: it must
        still take part in the sum.
        """
        rows = slice(self.rank, count, self.size)
        number = len(range(count)[rows])
        return (rows, number / count) if number else (slice(0, 1), 0.0)

    def mean_score(self, scores: Mapping[str, float], seen: int) -> dict[str, float]:
        """The mean over all images of scores that each process computed on `seen` images of its own."""
        if self.size == 1:
            return dict(scores)
        sums = [seen * score if seen else 0.0 for score in scores.values()]
        *totals, count = self.sum(torch.tensor([*sums, float(seen)], dtype=torch.float64, device=self.device)).tolist()
        return {name: total / count if count else float("nan") for name, total in zip(scores, totals, strict=True)}

    def mean_(self, tensors: Params) -> None:
        """Replace every float tensor with its mean over the processes."""
        if self.size > 1:
            for tensor in tensors.values():
                if tensor.is_floating_point():
                    tensor.copy_(self.sum(tensor) / self.size)

    def refresh(self, net: nn.Module, params: Params, buffers: Params, batches: Batches) -> dict[str, Tensor]:
        """`refresh_statistics` over all processes, each taking every size-th batch: the same mean over all images."""
        turns = Turns(batches, self)
        if self.size == 1:
            return refresh_statistics(net, params, buffers, turns)
        drawn = iter(turns)
        first = next(drawn, None)
        fresh = dict(buffers) if first is None else refresh_statistics(net, params, buffers, chain([first], drawn))
        seen = float(self.sum(torch.tensor(float(turns.seen), device=self.device)))
        share = turns.seen / max(seen, 1.0)
        return {
            # Batch counts add up; means and variances are averaged over all images.
            name: self.sum(tensor * share) if tensor.is_floating_point() else before + self.sum(tensor - before)
            for (name, tensor), before in zip(fresh.items(), buffers.values(), strict=True)
        }

    def check_same(self, batch: Batch) -> None:
        """Raise an error if a loader draws different batches in different processes: rows would not form one batch."""
        if self.size > 1:
            labels = batch[1].double().cpu()
            mark = torch.stack([(labels * torch.arange(1, len(labels) + 1)).sum(), torch.tensor(float(len(labels)))])
            mark = mark.to(self.device)
            if not torch.equal(self.sum(mark) / self.size, mark):
                raise ModebridgeError(
                    "Expected every process to draw the same batches, but they differ; seed the loader the same way in "
                    "all (a shuffling DataLoader needs a seeded generator), and let modebridge split the batches."
                )


class Turns:
    """Every size-th batch, starting with the rank-th; counts the images it has yielded."""

    def __init__(self, batches: Batches, processes: Processes) -> None:
        self._batches = batches
        self._processes = processes
        self.seen = 0

    def __iter__(self) -> Iterator[Batch]:
        self.seen = 0
        for number, batch in enumerate(self._batches):
            if number % self._processes.size == self._processes.rank:
                self.seen += len(batch[1])
                yield batch


class _Group(Processes):
    """The processes of a launcher, through Accelerate."""

    def __init__(self, *, cpu: bool) -> None:
        try:
            import accelerate
            from accelerate.utils import broadcast, reduce
        except ImportError as error:
            raise ModebridgeError(
                "Expected Accelerate to be installed for several processes, but it is not; "
                "pip install 'modebridge[distributed]'."
            ) from error
        self._state = accelerate.PartialState(cpu=cpu)
        self._reduce, self._broadcast = reduce, broadcast
        self.rank, self.size = self._state.process_index, self._state.num_processes
        self.device = self._state.device

    def sum(self, tensor: Tensor) -> Tensor:
        total: Tensor = self._reduce(tensor.detach(), reduction="sum")
        return total

    def from_first(self, tensor: Tensor) -> None:
        self._broadcast(tensor, from_process=0)

    def wait(self) -> None:
        self._state.wait_for_everyone()

    def leave(self) -> None:
        self.wait()
        self._state.destroy_process_group()
        # Gloo's threads can abort the interpreter at shutdown after all work is done.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


_ALONE = Processes()
_group: list[_Group] = []


def launched(*, cpu: bool) -> Processes:
    """The processes of this program: one, unless it was started by `torchrun` or a similar launcher.

    Args:
        cpu: whether they exchange CPU tensors; the first call decides.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return _ALONE
    if not _group:
        _group.append(_Group(cpu=cpu))
    return _group[0]


def leave() -> None:
    """Leave the group, if there is one; must be the last call of a program."""
    if _group:
        _group[0].leave()
