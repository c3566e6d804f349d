"""The training loop: it trains any objectives and knows nothing of curves or bridges."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from modebridge.batches import go_to_epoch
from modebridge.errors import ModebridgeError
from modebridge.training.checkpoints import Checkpoints, Position, fingerprint
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.epochs import Epoch, Report, Tick
from modebridge.training.graphed import Graphed
from modebridge.training.task import Fed, Forwards, Task, TaskRun
from modebridge.types import States

__all__ = ["Task", "train"]


def train(
    tasks: Sequence[Task],
    config: TrainConfig,
    *,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    tick: Tick | None = None,
) -> list[States]:
    """Minimise the sum of the members' losses of each task by SGD, tasks in parallel if the device has room.

    Tasks share nothing but compiled programs: each gets the same result as if trained alone.

    Args:
        tasks: at least one.
        config: epochs and optimiser.
        engine: device and precision; None means the CPU in fp32.
        checkpoints: where to save progress and resume from. A resumed run is bitwise equal to one that never stopped,
            given loaders that can repeat an epoch (ours can, by `set_epoch`). That includes networks with dropout: what
            they draw depends only on the task's seed, the member's name and the step.
        report: called after every epoch.
        tick: called after every step; must be fast.

    Returns:
        The states to keep for each task: each member's best epoch on `valid`, or the last one.
    """
    if not tasks:
        raise ModebridgeError("Expected at least one task to train, but got none; pass some.")
    if config.keep == "best" and any(task.valid is None for task in tasks):
        raise ModebridgeError(
            "Expected validation data to choose the best epoch, but got none; pass valid or set keep='last'."
        )
    loop = _Loop(tasks, config, engine or Engine.of(config), checkpoints, tick)
    for epoch in range(max(loop.position.epoch, 0), config.epochs):
        start = time.perf_counter()
        lr = config.lr * config.factor(epoch)
        losses, images = loop.epoch(epoch, lr)
        scores = loop.validate(epoch) if config.keep == "best" else {}
        if report is not None:
            report(Epoch(epoch + 1, config.epochs, lr, losses, scores, images, time.perf_counter() - start))
    return [run.kept(run.states(averaged=loop.averaging)) for run in loop.runs]


class _Loop:
    """All running tasks, resumed from a checkpoint if there is one."""

    def __init__(
        self,
        tasks: Sequence[Task],
        config: TrainConfig,
        engine: Engine,
        checkpoints: Checkpoints | None,
        tick: Tick | None,
    ) -> None:
        forwards: Forwards = {}
        self.runs = [TaskRun(task, config, engine, forwards) for task in tasks]
        self._config = config
        self._engine = engine
        self._steps = [step for run in self.runs for step in run.steps.values()]
        self._noises = [*(run.prepare_noise for run in self.runs), *(step.noise for step in self._steps)]
        self._graphed = Graphed(self._all_tasks, self._steps, self._noises, engine.device) if engine.graphs else None
        self._checkpoints = checkpoints
        self._tick = tick
        self._identity = ""
        self.averaging = False
        self.position = Position()
        if checkpoints is not None:
            self._identity = fingerprint(config, self.runs, engine.way)
            self.position = checkpoints.restore(self._identity, self.runs) or self.position
            # No process may write a new checkpoint while another still reads.
            engine.processes.wait()

    def validate(self, epoch: int) -> dict[str, float]:
        """The scores of all members after an epoch; keeps the best states."""
        return {
            self._label(k, member): score
            for k, run in enumerate(self.runs)
            for member, score in run.keep_best(epoch, run.states(averaged=self.averaging)).items()
        }

    def epoch(self, epoch: int, lr: float) -> tuple[dict[str, float], int]:
        """One pass over the data of every task; returns the mean losses by member and the number of images."""
        for run in self.runs:
            run.images = 0
            go_to_epoch(run.task.batches, epoch)
        # Resume an epoch from its first draw and skip the finished batches; no other state records the position.
        start, self.position = self.position, Position()
        if start.epoch != epoch:
            start = Position(epoch, tuple(run.draws.get_state() for run in self.runs))
        totals = self._one_by_one(lr, start) if self._graphed is None else self._together(self._graphed, lr, start)
        averaged = epoch + 2 - self._config.average_from if self._config.average_from else 0
        for step in self._steps:
            step.settle()
            if averaged > 0:
                step.average(averaged)
        self.averaging = averaged > 0
        means: dict[str, float] = {}
        for k, (total, count) in enumerate(totals):
            if count == 0:
                raise ModebridgeError(
                    f"Expected train to yield batches in epoch {epoch + 1}, but got none; "
                    "pass a list or loader that can be iterated again."
                )
            for member, mean in zip(self.runs[k].steps, (total / count).tolist(), strict=True):
                if not math.isfinite(mean):
                    raise ModebridgeError(
                        f"Expected the training loss of '{member}' to be finite, but got {mean} in epoch {epoch + 1}; "
                        "lower the learning rate or check the images."
                    )
                means[self._label(k, member)] = mean
        return means, sum(run.images for run in self.runs)

    def _label(self, k: int, member: str) -> str:
        """The name of a member of task k in metrics."""
        return member if len(self.runs) == 1 else f"{k}/{member}"

    def _one_by_one(self, lr: float, start: Position) -> list[tuple[Tensor, int]]:
        """One task after another: a CPU has no room for more."""
        totals = list(start.totals)
        for run in self.runs[: len(totals)]:
            # Finished before the stop: only advance their generators to the end of the epoch.
            for _ in run.fed(skip=sys.maxsize):
                pass
        done = start.count
        for run in self.runs[len(totals) :]:
            device = self._engine.device
            total, count = start.running.to(device) if done else torch.zeros(len(run.steps), device=device), done
            for prepared in run.prepared(start.epoch, skip=done):
                for step in run.steps.values():
                    step.noise.at(start.epoch, count)
                total = total + torch.stack([step(prepared[member], lr) for member, step in run.steps.items()])
                count += 1
                self._after_step(Position(start.epoch, start.draws, tuple(totals), count, total))
            totals.append((total, count))
            done = 0
        return totals

    def _together(self, graphed: Graphed, lr: float, start: Position) -> list[tuple[Tensor, int]]:
        """All tasks together, one launch per step: one batch of 128 leaves half of a large GPU idle."""
        sizes, count = [len(run.steps) for run in self.runs], start.count
        total = start.running.to(self._engine.device) if count else torch.zeros(sum(sizes), device=self._engine.device)
        for fed in zip(*(run.fed(skip=count) for run in self.runs), strict=True):
            for noise in self._noises:
                noise.at(start.epoch, count)
            total = total + torch.cat(graphed(fed, lr))
            count += 1
            self._after_step(Position(start.epoch, start.draws, (), count, total))
        return [(part, count) for part in torch.split(total, sizes)]

    def _all_tasks(self, fed: Sequence[Fed], lr: Tensor) -> list[Tensor]:
        prepared = [run.prepare(batch, draw) for run, (batch, draw) in zip(self.runs, fed, strict=True)]
        jobs = [
            partial(step, inputs[member], lr)
            for run, inputs in zip(self.runs, prepared, strict=True)
            for member, step in run.steps.items()
        ]
        losses = torch.stack(self._engine.fan_out(jobs))
        return list(torch.split(losses, [len(run.steps) for run in self.runs]))

    def _after_step(self, position: Position) -> None:
        if self._tick is not None:
            self._tick(position.epoch, sum(run.images for run in self.runs))
        # All processes read, only the first writes.
        if self._checkpoints is not None and self._engine.processes.rank == 0 and self._checkpoints.due():
            self._checkpoints.save(self._identity, position, self.runs)
