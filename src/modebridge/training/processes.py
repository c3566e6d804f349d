"""Several processes as one: what `torchrun` started, and the few things that they do together.

Every process runs the same program, takes its own rows of every batch, and adds its gradient to the others'. Nothing
else is shared, so that a program for one process is a program for many.
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
    """One process, which is all of them.

    Attributes:
        rank: which one this is, counted from 0; files are written and words printed by 0 alone.
        size: how many there are.
        device: the GPU that is this process's own; None where there is no such choice.
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
        """Go on when all have come here."""

    def leave(self) -> None:
        """End the group; the last thing that a program does."""

    def rows(self, count: int) -> tuple[slice, float]:
        """Our rows of a batch of `count`, and what they weigh in its mean.

        A process that gets none (a last batch smaller than the group) takes the first row at weight 0: it must still
        take part in the sum.
        """
        rows = slice(self.rank, count, self.size)
        number = len(range(count)[rows])
        return (rows, number / count) if number else (slice(0, 1), 0.0)

    def mean_score(self, scores: Mapping[str, float], seen: int) -> dict[str, float]:
        """The mean over all images of scores that each process has on `seen` images of its own."""
        if self.size == 1:
            return dict(scores)
        sums = [seen * score if seen else 0.0 for score in scores.values()]
        *totals, count = self.sum(torch.tensor([*sums, float(seen)], dtype=torch.float64, device=self.device)).tolist()
        return {name: total / count if count else float("nan") for name, total in zip(scores, totals, strict=True)}

    def mean_(self, tensors: Params) -> None:
        """Replace every float tensor by its mean over the processes."""
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
            # Counts of batches add up; means and variances are means over all images.
            name: self.sum(tensor * share) if tensor.is_floating_point() else before + self.sum(tensor - before)
            for (name, tensor), before in zip(fresh.items(), buffers.values(), strict=True)
        }

    def check_same(self, batch: Batch) -> None:
        """Refuse a loader that draws other batches in other processes: their rows would not make up one batch."""
        if self.size > 1:
            labels = batch[1].double().cpu()
            mark = torch.stack([(labels * torch.arange(1, len(labels) + 1)).sum(), torch.tensor(float(len(labels)))])
            mark = mark.to(self.device)
            if not torch.equal(self.sum(mark) / self.size, mark):
                raise ModebridgeError(
                    "Expected every process to draw the same batches, but they differ; seed the loader alike in all "
                    "(a shuffling DataLoader needs a seeded generator), and leave the sharing out to modebridge."
                )


class Turns:
    """Every size-th batch, beginning with the rank-th; counts the images it has given."""

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
    """The processes of a launcher, by Accelerate."""

    def __init__(self, *, cpu: bool) -> None:
        try:
            import accelerate
            from accelerate.utils import broadcast, reduce
        except ImportError as error:
            raise ModebridgeError(
                "Expected Accelerate for several processes, but it is not installed; "
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
        # Gloo's threads can abort an interpreter that is shutting down after everything has been done.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


_ALONE = Processes()
_group: list[_Group] = []


def launched(*, cpu: bool) -> Processes:
    """The processes that this program was started as: one, unless `torchrun` (or its like) says otherwise.

    Args:
        cpu: whether they talk about tensors on CPUs; decided by whoever asks first.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return _ALONE
    if not _group:
        _group.append(_Group(cpu=cpu))
    return _group[0]


def leave() -> None:
    """End the group, where there is one, as the last thing that a program does."""
    if _group:
        _group[0].leave()
