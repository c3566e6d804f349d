"""The steps of all tasks and members, fed with batches one epoch at a time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from modebridge import seeds
from modebridge.batches import go_to_epoch
from modebridge.errors import ModebridgeError
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.flat import Layout
from modebridge.training.graph import Fed, Graphed
from modebridge.training.saver import Position, Saver, fingerprint
from modebridge.training.step import Forward, Step, make_forward, precision
from modebridge.types import Batch, Batches, Draw, Objective, Prepared, Program, State, States

__all__ = ["Runner", "Task"]


@dataclass(frozen=True)
class Task:
    """One thing to train: where it begins, and on what.

    Args:
        start: the states before the first step.
        batches: the training data, iterated once an epoch; `set_epoch` is called where it exists.
        valid: held-out data; needed to keep the best epoch of each member, unused otherwise.
        seed: of the objective's own draws.
        validate: scores its states on held-out data, where the objective's own `validate` does not know enough.
    """

    start: States
    batches: Batches
    valid: Batches | None = None
    seed: int = 0
    validate: Callable[[States, Batches], Mapping[str, float]] | None = None


class Runner:
    """Trains tasks epoch by epoch, from the place where a checkpoint left them.

    Args:
        objective: what to train.
        tasks: at least one, all of one architecture.
        config: epochs and optimiser.
        engine: where and how.
    """

    def __init__(self, objective: Objective, tasks: Sequence[Task], config: TrainConfig, engine: Engine) -> None:
        self._objective = objective
        self._tasks = tasks
        self._config = config
        self._engine = engine
        self._draws = [seeds.generator(task.seed, "draws") for task in tasks]
        self.best: list[dict[str, tuple[float, State]]] = [{} for _ in tasks]
        self.begun = 0
        self._seen = 0
        self._averaging = False
        self._position = Position()
        self._saver: Saver | None = None
        forwards: dict[tuple[Program, str], Forward] = {}
        self.steps: list[dict[str, Step]] = []
        for task in tasks:
            self.steps.append({})
            for member, state in task.start.items():
                layout, program = Layout(state.params), objective.program(member)
                key = (program, layout.key)
                if key not in forwards:
                    forwards[key] = engine.compiled(make_forward(program, layout))
                self.steps[-1][member] = Step(
                    state,
                    layout,
                    forwards[key],
                    config,
                    engine.device,
                    bf16=engine.bf16,
                    processes=engine.processes,
                )
        every = [step for steps in self.steps for step in steps.values()]
        self._graphed = Graphed(self._all_tasks, every, engine.device) if engine.graphs else None

    def resume(self, checkpoints: Checkpoints) -> None:
        """Go on where a checkpoint stopped, and save to it from now on."""
        identity = fingerprint(self._config, self.steps, self._tasks, self._engine.way)
        first = self._engine.processes.rank == 0
        self._saver = Saver(checkpoints, identity, self.steps, self._draws, self.best, writes=first)
        found = self._saver.load()
        if found is not None:
            self._position = found
            self.begun = found.epoch
        # Nobody may write a new one while another process still reads.
        self._engine.processes.wait()

    def states(self) -> list[States]:
        """The present states of every task; of the running means once there are any."""
        return [
            {member: step.state(averaged=self._averaging) for member, step in steps.items()} for steps in self.steps
        ]

    def label(self, k: int, member: str) -> str:
        """How metrics call a member of task k."""
        return member if len(self._tasks) == 1 else f"{k}/{member}"

    def epoch(self, epoch: int, lr: float) -> tuple[dict[str, float], int]:
        """One pass over the data of every task; returns the mean losses by member, and how many images were seen."""
        self._seen = 0
        for task in self._tasks:
            go_to_epoch(task.batches, epoch)
        # An epoch is repeated from its first draw, what was done already skipped: nothing else knows where it stood.
        begin, self._position = self._position, Position()
        if begin.epoch != epoch:
            begin = Position(epoch, tuple(generator.get_state() for generator in self._draws))
        totals = self._one_by_one(lr, begin) if self._graphed is None else self._together(self._graphed, lr, begin)
        averaged = epoch + 2 - self._config.average_from if self._config.average_from else 0
        for step in (step for steps in self.steps for step in steps.values()):
            step.settle()
            if averaged > 0:
                step.average(averaged)
        self._averaging = averaged > 0
        means: dict[str, float] = {}
        for k, (total, count) in enumerate(totals):
            if count == 0:
                raise ModebridgeError(
                    f"Expected train to yield batches in epoch {epoch + 1}, but got none; "
                    "give a list or loader that can be iterated again."
                )
            for member, mean in zip(self.steps[k], (total / count).tolist(), strict=True):
                if not math.isfinite(mean):
                    raise ModebridgeError(
                        f"Expected the training loss of '{member}' to be finite, but got {mean} in epoch {epoch + 1}; "
                        "lower the learning rate or check the images."
                    )
                means[self.label(k, member)] = mean
        return means, self._seen

    def _one_by_one(self, lr: float, begin: Position) -> list[tuple[Tensor, int]]:
        """Task after task: on a CPU there is no room beside one."""
        totals = list(begin.totals)
        for k in range(len(totals)):
            # Done before the stop: only their generators must come to where the epoch left them.
            for _ in self._fed(k, skip=sys.maxsize):
                pass
        for k in range(len(totals), len(self.steps)):
            steps, done = self.steps[k], begin.count if k == len(begin.totals) else 0
            total, count = begin.running if done else torch.zeros(len(steps), device=self._engine.device), done
            for prepared, weight in self._prepared(k, skip=done):
                total = total + torch.stack([step(prepared[member], lr, weight) for member, step in steps.items()])
                count += 1
                if self._saver is not None:
                    self._saver.save_if_due(Position(begin.epoch, begin.draws, tuple(totals), count, total))
            totals.append((total, count))
        return totals

    def _together(self, graphed: Graphed, lr: float, begin: Position) -> list[tuple[Tensor, int]]:
        """Step by step, all tasks in one launch: one batch of 128 leaves half of a large chip idle."""
        sizes, count = [len(steps) for steps in self.steps], begin.count
        total = begin.running.to(self._engine.device) if count else torch.zeros(sum(sizes), device=self._engine.device)
        for fed in zip(*(self._fed(k, skip=count) for k in range(len(self._tasks))), strict=True):
            total = total + torch.cat(graphed([shared for shared, _ in fed], lr))
            count += 1
            if self._saver is not None:
                self._saver.save_if_due(Position(begin.epoch, begin.draws, (), count, total))
        return [(part, count) for part in torch.split(total, sizes)]

    def _all_tasks(self, fed: Sequence[Fed], lr: Tensor) -> list[Tensor]:
        prepared = [self._prepare(batch, draw) for batch, draw in fed]
        jobs = [
            partial(step, given[member], lr)
            for steps, given in zip(self.steps, prepared, strict=True)
            for member, step in steps.items()
        ]
        losses = torch.stack(self._engine.fan_out(jobs))
        return list(torch.split(losses, [len(steps) for steps in self.steps]))

    def _prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        with precision(self._engine.device, bf16=self._engine.bf16):
            return self._objective.prepare(batch, draw)

    def _drawn(self, k: int) -> Iterator[tuple[Batch, int, bool]]:
        """Batches of an epoch, how many images each has in all processes, and whether it is our rows of it already."""
        batches, processes = self._tasks[k].batches, self._engine.processes
        if processes.size > 1 and not self._objective.whole:
            shared = getattr(batches, "shared", None)
            parts = shared(processes.rank, processes.size) if callable(shared) else None
            if parts is not None:
                yield from ((batch, count, True) for batch, count in parts)
                return
        for number, batch in enumerate(batches):
            if number == 0:
                processes.check_same(batch)
            yield batch, len(batch[1]), processes.size == 1

    def _fed(self, k: int, skip: int = 0) -> Iterator[tuple[Fed, float]]:
        """Batches and draws of an epoch on our device, and the share of each that is this process's."""
        for number, (batch, count, ours) in enumerate(self._drawn(k)):
            draw = self._objective.draw(count, self._draws[k])
            if number < skip:
                continue
            self._seen += count
            rows, weight = self._engine.processes.rows(count)
            if not ours:
                batch, draw = self._objective.part(batch, draw, rows)
            yield self._engine.moved(batch, draw), weight

    def _prepared(self, k: int, skip: int) -> Iterator[tuple[Mapping[str, Prepared], float]]:
        """The steps of an epoch, where it pays each prepared on another core while the one before is learned from."""
        if not self._objective.ahead or self._engine.device.type != "cpu":
            for (batch, draw), weight in self._fed(k, skip):
                yield self._prepare(batch, draw), weight
            return
        with ThreadPoolExecutor(1) as other:
            waiting: tuple[Future[Mapping[str, Prepared]], float] | None = None
            # Drawn here, in order, so that the numbers do not depend on which thread is faster.
            for (batch, draw), weight in self._fed(k, skip):
                coming = other.submit(self._prepare, batch, draw), weight
                if waiting is not None:
                    yield waiting[0].result(), waiting[1]
                waiting = coming
            if waiting is not None:
                yield waiting[0].result(), waiting[1]
