"""The one loop: it trains whatever objective it is given and knows nothing of curves or bridges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from modebridge import seeds, trees
from modebridge.errors import ModebridgeError
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.flat import Layout
from modebridge.training.graph import GraphedSteps
from modebridge.training.step import Step, make_forward
from modebridge.types import Batches, Objective, Prepared, State, States

__all__ = ["Report", "Task", "train"]

Report: TypeAlias = Callable[[int, Mapping[str, float]], None]
"""Called after every epoch with the number of epochs done and the mean training losses by member."""


@dataclass(frozen=True)
class Task:
    """One thing to train: where it begins, and on what.

    Args:
        start: the states before the first step.
        batches: the training data, iterated once an epoch; `set_epoch` is called where it exists.
        valid: held-out data; needed to keep the best epoch of each member, unused otherwise.
        seed: of the objective's own draws.
    """

    start: States
    batches: Batches
    valid: Batches | None = None
    seed: int = 0


def train(
    objective: Objective,
    tasks: Sequence[Task],
    config: TrainConfig,
    *,
    engine: Engine | None = None,
    report: Report | None = None,
) -> list[States]:
    """Minimise the sum of the members' losses of each task by SGD, tasks side by side where the device is wide enough.

    Tasks share nothing but the architecture: each ends where it would have ended alone.

    Args:
        objective: what to train.
        tasks: at least one, all of one architecture.
        config: epochs and optimiser.
        engine: device and precision; None is the CPU in fp32.
        report: told of progress.

    Returns:
        The states to keep of each task: each member's best epoch on `valid`, or the last one.
    """
    if not tasks:
        raise ModebridgeError("Expected at least one task to train, but got none; give some.")
    if config.keep == "best" and any(task.valid is None for task in tasks):
        raise ModebridgeError(
            "Expected validation data to keep the best epoch by, but got none; give valid or set keep='last'."
        )
    engine = engine or Engine()
    layout = Layout(tasks[0].start)
    forward = engine.compiled(make_forward(objective, layout))
    steps = [Step(task.start, layout, forward, config, engine.device, bf16=engine.bf16) for task in tasks]
    runner = _Runner(objective, tasks, steps, engine)
    best: list[dict[str, tuple[float, State]]] = [{} for _ in tasks]
    for epoch in range(config.epochs):
        losses = runner.epoch(epoch, config.lr * config.factor(epoch))
        if config.keep == "best":
            for task, step, kept in zip(tasks, steps, best, strict=True):
                _keep_best(objective, task, step, kept)
        if report is not None:
            report(epoch + 1, losses)
    return [
        {member: kept[member][1] if member in kept else _copy(state) for member, state in step.states().items()}
        for step, kept in zip(steps, best, strict=True)
    ]


def _keep_best(objective: Objective, task: Task, step: Step, kept: dict[str, tuple[float, State]]) -> None:
    assert task.valid is not None
    states = step.states()
    for member, score in objective.validate(states, task.valid).items():
        if member not in kept or score < kept[member][0]:
            kept[member] = (score, _copy(states[member]))


class _Runner:
    """Feeds steps with batches, one epoch at a time."""

    def __init__(self, objective: Objective, tasks: Sequence[Task], steps: Sequence[Step], engine: Engine) -> None:
        self._objective = objective
        self._tasks = tasks
        self._steps = steps
        self._engine = engine
        self._draws = [seeds.generator(task.seed, "draws") for task in tasks]
        self._graphed = GraphedSteps(steps, engine) if engine.graphs else None

    def epoch(self, epoch: int, lr: float) -> dict[str, float]:
        """One pass over the data of every task; returns the mean losses by member."""
        for task in self._tasks:
            set_epoch = getattr(task.batches, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
        if self._graphed is None:
            totals = [self._alone(k, lr) for k in range(len(self._tasks))]
        else:
            totals = self._together(self._graphed, lr)
        means: dict[str, float] = {}
        for k, (total, count) in enumerate(totals):
            if count == 0:
                raise ModebridgeError(
                    f"Expected train to yield batches in epoch {epoch + 1}, but got none; "
                    "give a list or loader that can be iterated again."
                )
            for member, mean in zip(self._steps[k].members, (total / count).tolist(), strict=True):
                if not math.isfinite(mean):
                    raise ModebridgeError(
                        f"Expected the training loss of '{member}' to be finite, but got {mean} in epoch {epoch + 1}; "
                        "lower the learning rate or check the images."
                    )
                means[member if len(self._tasks) == 1 else f"{k}/{member}"] = mean
        return means

    def _alone(self, k: int, lr: float) -> tuple[Tensor, int]:
        """Task after task: on a CPU there is no room beside one."""
        step = self._steps[k]
        total, count = torch.zeros(len(step.members), device=self._engine.device), 0
        for prepared in self._prepared(k):
            total += step(prepared, lr)
            count += 1
        return total, count

    def _together(self, graphed: GraphedSteps, lr: float) -> list[tuple[Tensor, int]]:
        """Step by step, all tasks in one launch: one batch of 128 leaves half of a large chip idle."""
        sums = [torch.zeros(len(step.members), device=self._engine.device) for step in self._steps]
        count = 0
        for prepared in zip(*(self._prepared(k) for k in range(len(self._tasks))), strict=True):
            for total, losses in zip(sums, graphed(prepared, lr), strict=True):
                total += losses
            count += 1
        return [(total, count) for total in sums]

    def _prepared(self, k: int) -> Iterator[Prepared]:
        """The steps of an epoch, where it pays each prepared on another core while the one before is learned from."""
        objective, batches, draws = self._objective, self._tasks[k].batches, self._draws[k]
        if not objective.ahead or self._engine.device.type != "cpu":
            for batch in batches:
                draw = objective.draw(len(batch[0]), draws)
                yield self._engine.moved(objective.prepare(batch, draw))
            return
        with ThreadPoolExecutor(1) as other:
            waiting: Future[Prepared] | None = None
            for batch in batches:
                # Drawn here, in order, so that the numbers do not depend on which thread is faster.
                coming = other.submit(objective.prepare, batch, objective.draw(len(batch[0]), draws))
                if waiting is not None:
                    yield waiting.result()
                waiting = coming
            if waiting is not None:
                yield waiting.result()


def _copy(state: State) -> State:
    return State(trees.clone(state.params), trees.clone(state.buffers), state.frozen)
