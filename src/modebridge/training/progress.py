"""What the loop writes down: a record of every epoch, and checkpoints, to resume as if it had never stopped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from modebridge import trees
from modebridge.errors import ModebridgeError, needed
from modebridge.files.atomic import Damage, read_tensor_file, tensor_file, write_file
from modebridge.types import State

if TYPE_CHECKING:
    from modebridge.training.config import TrainConfig
    from modebridge.training.loop import TaskRun


@dataclass(frozen=True)
class Epoch:
    """One finished epoch of the loop.

    Args:
        number: the epoch, counted from 1.
        total: the total number of epochs.
        lr: the learning rate.
        losses: mean training losses by member ("2/mode" for the third of several tasks).
        scores: validation scores by member, lower is better; empty unless the best epoch is kept.
        images: the number of training images, over all tasks and processes.
        seconds: duration, including validation.
    """

    number: int
    total: int
    lr: float
    losses: Mapping[str, float]
    scores: Mapping[str, float] = field(default_factory=dict)
    images: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Images per second.

        >>> Epoch(1, 2, 0.1, {}, images=500, seconds=2.0).rate
        250.0
        """
        return self.images / self.seconds if self.seconds > 0 else 0.0


Report: TypeAlias = Callable[[Epoch], None]
"""Called after every epoch."""


class TensorBoard:
    """A report callback that writes scalars for TensorBoard (extra: `pip install 'modebridge[tensorboard]'`).

    Args:
        folder: the log folder of the run.
    """

    def __init__(self, folder: Path | str) -> None:
        with needed("TensorBoard to write its logs", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, epoch: Epoch) -> None:
        numbers = {f"loss/{name}": loss for name, loss in epoch.losses.items()}
        numbers |= {f"validation/{name}": score for name, score in epoch.scores.items()}
        for name, number in (numbers | {"lr": epoch.lr, "images per second": epoch.rate}).items():
            self._writer.add_scalar(name, number, epoch.number)
        self._writer.flush()


@dataclass(frozen=True)
class Position:
    """A position in a run, between two steps."""

    epoch: int = -1  # counted from 0; -1 before the first
    draws: tuple[Tensor, ...] = ()  # the generators' states at the start of the epoch, one per task
    totals: tuple[tuple[Tensor, int], ...] = ()  # loss sums and batch counts of tasks that have finished the epoch
    count: int = 0  # batches done by the current task
    running: Tensor = torch.zeros(0)  # the sum of its losses so far  # noqa: RUF009


class Checkpoints:
    """Where the loop saves its state and resumes from.

    Two files are kept, the newest and the previous one; if the newest is damaged, the previous one is used.

    Args:
        path: the newest file; the previous one has ".before" appended.
        every: seconds between saves.
    """

    def __init__(self, path: Path | str, every: float = 60.0) -> None:
        self.path = Path(path)
        self._before = self.path.with_name(self.path.name + ".before")
        self._every = every
        self._last = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._last >= self._every

    def save(self, identity: str, position: Position, runs: Sequence[TaskRun]) -> None:
        """Save the position, the steps and the best states of all tasks; `identity` is their `fingerprint`."""
        tensors: dict[str, Tensor] = {"running": position.running}
        scores: dict[str, float] = {}
        for k, run in enumerate(runs):
            tensors[f"draws/{k}"] = position.draws[k]
            for member, step in run.steps.items():
                tensors |= trees.prefixed(f"step/{k}/{member}/", step.tensors())
            for member, (score, state) in run.best.items():
                scores[f"{k}/{member}"] = score
                tensors |= trees.prefixed(f"best/{k}/{member}/params/", state.params)
                tensors |= trees.prefixed(f"best/{k}/{member}/buffers/", state.buffers)
        for k, (total, _) in enumerate(position.totals):
            tensors[f"total/{k}"] = total
        metadata = {
            "identity": identity,
            "epoch": position.epoch,
            "count": position.count,
            "counts": [count for _, count in position.totals],
            "scores": scores,
        }
        write_file(self.path, tensor_file(tensors, metadata), keep=self._before)
        self._last = time.monotonic()

    def restore(self, identity: str, runs: Sequence[TaskRun]) -> Position | None:
        """Restore everything as it was saved; None if there is no checkpoint, an error if it has another identity."""
        newest = self._newest(identity)
        if newest is None:
            return None
        tensors, metadata = newest
        for k, run in enumerate(runs):
            run.draws.set_state(tensors[f"draws/{k}"])
            for member, step in run.steps.items():
                step.restore(trees.below(tensors, f"step/{k}/{member}/"))
                key = f"{k}/{member}"
                if key in metadata["scores"]:
                    params, buffers = (
                        trees.to(trees.below(tensors, f"best/{key}/{part}/"), step.flat.device)
                        for part in ("params", "buffers")
                    )
                    run.best[member] = (metadata["scores"][key], State(params, buffers, step.frozen))
        totals = tuple((tensors[f"total/{k}"], count) for k, count in enumerate(metadata["counts"]))
        draws = tuple(tensors[f"draws/{k}"] for k in range(len(runs)))
        return Position(metadata["epoch"], draws, totals, metadata["count"], tensors["running"])

    def _newest(self, identity: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest intact file, or None if there is none yet."""
        files = [file for file in (self.path, self._before) if file.exists()]
        for file in files:
            try:
                content = read_tensor_file(file)
            except Damage:
                continue
            if content[1].get("identity") != identity:
                raise ModebridgeError(
                    f"Expected the checkpoint '{file}' to be from this run, but its recipe, data, device, precision or "
                    "version differs; delete it to start over, or go back to the settings it was created with."
                )
            return content
        if files:
            raise ModebridgeError(
                f"Expected '{files[0]}' to be an intact checkpoint, but every copy is damaged; delete it to start over."
            )
        return None


def fingerprint(config: TrainConfig, runs: Sequence[TaskRun], way: str) -> str:
    """A hash of everything that defines a run: settings, names, initial weights, seeds, and how it runs.

    How it runs is `Engine.way`: the precision, and whether tasks run together step by step or one after another, which
    a position depends on.
    """
    # Not the name of a function that makes the optimizer, but what it makes: another function may have the same name.
    config = replace(config, optimizer="auto") if callable(config.optimizer) else config
    digest = hashlib.sha256(f"{config.key} {way} {[run.task.seed for run in runs]}".encode())
    for run in runs:
        for member, step in run.steps.items():
            start = trees.fingerprint({"flat": step.flat.detach()}, step.buffers, step.frozen)
            digest.update(f"{member} {step.layout.key} {start}{step.built}".encode())
    return digest.hexdigest()
