"""A task: one thing to train, the path of its batches to the steps, and the state of its members."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from modebridge import seeds, trees
from modebridge.errors import ModebridgeError
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.noise import Noise
from modebridge.training.step import FlatLayout, Forward, Step, make_forward
from modebridge.types import Batch, Batches, Draw, Objective, Prepared, Program, State, States

__all__ = ["Fed", "Forwards", "Task", "TaskRun"]

Fed: TypeAlias = tuple[Batch, Draw]
"""The input of one task in a step, on the device."""

Forwards: TypeAlias = MutableMapping[tuple[Program, str], Forward]
"""Functions compiled so far, by program and layout, shared by all tasks."""


@dataclass(frozen=True)
class Task:
    """One thing to train, and its data.

    Args:
        objective: its start and its losses.
        batches: the training data, iterated once per epoch; `set_epoch` is called if it exists.
        valid: held-out data; needed to keep the best epoch of each member, otherwise unused.
        seed: seed for what the objective and the networks draw.
    """

    objective: Objective[Any]
    batches: Batches
    valid: Batches | None = None
    seed: int = 0


class TaskRun:
    """A running task.

    Args:
        task: what is trained.
        config: the optimiser.
        engine: where and how to run.
        forwards: the compiled losses, shared with other tasks.

    Attributes:
        steps: the training state of each member.
        draws: the generator for the objective's random choices.
        best: the best score of each member, and its state at that time.
        images: the number of images drawn so far, over all processes.
        prepare_noise: the random numbers that frozen networks draw, if their dropout was left on.
    """

    def __init__(self, task: Task, config: TrainConfig, engine: Engine, forwards: Forwards) -> None:
        self.task = task
        self.steps: dict[str, Step] = {}
        self.draws = seeds.generator(task.seed, "draws")
        self.best: dict[str, tuple[float, State]] = {}
        self.images = 0
        self._engine = engine
        self._processes = engine.processes
        for member, state in task.objective.start().items():
            layout, program = FlatLayout(state.params), task.objective.program(member)
            key = (program, layout.key)
            if key not in forwards:
                forwards[key] = engine.compiled(make_forward(program, layout))
            noise, pace = self._noise(member), task.objective.pace(member)
            self.steps[member] = Step(state, layout, forwards[key], config, engine, noise, pace)
        self.prepare_noise, self._valid_noise = self._noise("/prepare"), self._noise("/valid")

    def _noise(self, name: str) -> Noise:
        # The rank is part of the name: processes learn from different rows, which need different dropout masks.
        return Noise(self._engine.device, self.task.seed, name, self._processes.rank)

    def states(self, *, averaged: bool) -> States:
        """The current states of the members, or those of the running means."""
        return {member: step.state(averaged=averaged) for member, step in self.steps.items()}

    def keep_best(self, epoch: int, states: States) -> dict[str, float]:
        """Validate after an epoch, and keep the states of members that improved; returns the scores."""
        assert self.task.valid is not None
        self._valid_noise.at(epoch, 0)
        with self._valid_noise():
            scores = dict(self.task.objective.validate(states, self.task.valid))
        if self._processes.size > 1:
            # The same in all, so that all keep the same epoch even where a GPU rounds differently.
            means = self._processes.mean(torch.tensor([*scores.values()], device=self._engine.device))
            scores = dict(zip(scores, means.tolist(), strict=True))
        for member, score in scores.items():
            if not math.isfinite(score):
                raise ModebridgeError(
                    f"Expected the validation score of '{member}' to be finite, but got {score}; check the validation "
                    "data."
                )
            if member not in self.best or score < self.best[member][0]:
                self.best[member] = (score, _copy(states[member]))
        return scores

    def kept(self, states: States) -> States:
        """The best state of each member, or the current one if none was kept."""
        return {
            member: self.best[member][1] if member in self.best else _copy(state) for member, state in states.items()
        }

    def fed(self, skip: int = 0) -> Iterator[Fed]:
        """This process's rows of the batches of an epoch with their draws, on the device, without the first `skip`."""
        for number, batch in enumerate(self.task.batches):
            count = len(batch[1])
            part = self._processes.part(batch)
            # Drawn for skipped batches too: the generator goes on from where it would be.
            draw = self.task.objective.draw(len(part[1]), self.draws)
            if number >= skip:
                self.images += count
                yield self._engine.moved(part, draw)

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        """What the objective prepares from a batch, by member."""
        with self.prepare_noise(), self._engine.precision():
            return self.task.objective.prepare(batch, draw)

    def prepared(self, epoch: int, skip: int) -> Iterator[Mapping[str, Prepared]]:
        """The prepared batches of an epoch; on a CPU the next one is prepared on another core during a step."""

        def prepare(number: int, fed: Fed) -> Mapping[str, Prepared]:
            self.prepare_noise.at(epoch, number)
            return self.prepare(*fed)

        # Drawn here, in order, so that the numbers do not depend on thread timing.
        numbered = enumerate(self.fed(skip), skip)
        if self._engine.device.type != "cpu":
            yield from (prepare(number, fed) for number, fed in numbered)
            return
        with ThreadPoolExecutor(1) as other:
            waiting: Future[Mapping[str, Prepared]] | None = None
            for number, fed in numbered:
                coming = other.submit(prepare, number, fed)
                if waiting is not None:
                    yield waiting.result()
                waiting = coming
            if waiting is not None:
                yield waiting.result()


def _copy(state: State) -> State:
    return State(trees.clone(state.params), trees.clone(state.buffers), state.frozen)
