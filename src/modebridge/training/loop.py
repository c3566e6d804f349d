"""The training loop: it trains any objectives and knows nothing of curves or bridges."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from modebridge import seeds, trees
from modebridge.batches import apart, go_to_epoch, one_ahead
from modebridge.errors import ModebridgeError
from modebridge.training.config import Engine, TrainConfig
from modebridge.training.graphs import Fed, StepGraph
from modebridge.training.progress import Epoch, Position, fingerprint
from modebridge.training.step import FlatLayout, Forward, Noise, Step, make_forward
from modebridge.types import Batch, Batches, Draw, Objective, Prepared, State, States


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


@torch.enable_grad()
def train(
    tasks: Sequence[Task],
    config: TrainConfig,
    *,
    engine: Engine | None = None,
    title: str = "training",
) -> list[States]:
    """Minimize the sum of the members' losses of each task, tasks in parallel if the device has room.

    Tasks share nothing but compiled programs: each gets the same result as if trained alone. A run resumed from
    `config.checkpoints` is bitwise equal to one that never stopped, given loaders that can repeat an epoch (ours can,
    by `set_epoch`). That includes networks with dropout: what they draw depends only on the task's seed, the member's
    name and the step.

    Args:
        tasks: at least one.
        config: all options.
        engine: how to run; None is what the config asks for.
        title: the text in front of the progress bar.

    Returns:
        The states to keep for each task: each member's best epoch on `valid`, or the last one.
    """
    if not tasks:
        raise ModebridgeError("Expected at least one task to train, but got none; pass some.")
    if config.keep == "best" and any(task.valid is None for task in tasks):
        raise ModebridgeError(
            "Expected validation data to choose the best epoch, but got none; pass valid or set keep='last'."
        )
    engine, config = engine or Engine.of(config), config.resolved(nn.Module())
    loop = _Loop(tasks, config, engine)
    first = max(loop.position.epoch, 0)
    with tqdm(desc=title, total=config.epochs, initial=first, unit="epoch", disable=_hidden(config, engine)) as bar:
        for number in range(first, config.epochs):
            start = time.perf_counter()
            lr = (1.0 if config.lr is None else config.lr) * config.factor(number)
            losses, images = loop.epoch(number, lr)
            scores = loop.validate(number) if config.keep == "best" else {}
            epoch = Epoch(number + 1, config.epochs, lr, losses, scores, images, time.perf_counter() - start)
            bar.set_postfix_str(f"loss {sum(losses.values()) / max(len(losses), 1):.3f}", refresh=False)
            bar.update()
            for call in config.callbacks:
                call(epoch)
    return [run.kept(run.states(averaged=loop.averaging)) for run in loop.runs]


def _hidden(config: TrainConfig, engine: Engine) -> bool:
    """Whether to show no bar: by default in pipes and beside callbacks, and in all processes but the first."""
    seen = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    shown = seen and not config.callbacks if config.progress is None else config.progress
    return not shown or engine.processes.rank > 0


class TaskRun:
    """A running task; `forwards` are the functions compiled so far, by program and layout."""

    def __init__(self, task: Task, config: TrainConfig, engine: Engine, forwards: dict[Any, Forward]) -> None:
        self.task, self._engine = task, engine
        self.steps: dict[str, Step] = {}
        self.draws = seeds.generator(task.seed, "draws")  # for the objective's random choices
        self.best: dict[str, tuple[float, State]] = {}  # the best score of each member, and its state at that time
        self.images = 0  # drawn in this epoch, over all processes
        self.drawn = 0  # batches of this epoch so far, with those that were skipped
        for member, state in task.objective.start().items():
            layout, program = FlatLayout(state.params), task.objective.program(member)
            key = (program, layout.key)
            if key not in forwards:
                forwards[key] = engine.compiled(make_forward(program, layout))
            self.steps[member] = Step(state, layout, forwards[key], config, engine, self._noise(member))
        # What frozen networks draw, if their dropout was left on.
        self.prepare_noise, self._valid_noise = self._noise("/prepare"), self._noise("/valid")

    def _noise(self, name: str) -> Noise:
        # The rank is part of the name: processes learn from different rows, which need different dropout masks.
        return Noise(self._engine.device, self.task.seed, name, self._engine.processes.rank)

    def states(self, *, averaged: bool) -> States:
        """The current states of the members, or those of the running means."""
        return {member: step.state(averaged=averaged) for member, step in self.steps.items()}

    def keep_best(self, epoch: int, states: States) -> dict[str, float]:
        """Validate after an epoch, and keep the states of members that improved; returns the scores."""
        assert self.task.valid is not None
        self._valid_noise.at(epoch, 0)
        with self._valid_noise():
            scores = dict(self.task.objective.validate(states, self.task.valid))
        if self._engine.processes.size > 1:
            # The same in all, so that all keep the same epoch even where a GPU rounds differently.
            means = self._engine.processes.mean(torch.tensor([*scores.values()], device=self._engine.device))
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

    def fed(self, epoch: int, skip: int = 0) -> Iterator[Fed]:
        """This process's rows of the batches of an epoch with their draws, on the device, without the first `skip`."""
        processes, self.images, self.drawn = self._engine.processes, 0, 0
        go_to_epoch(self.task.batches, epoch)  # here, since tasks may share a loader
        for number, batch in enumerate(self.task.batches):
            part = batch if processes.size == 1 else processes.part(batch)
            # Drawn for skipped batches too: the generator goes on from where it would be.
            draw = self.task.objective.draw(len(part[1]), self.draws)
            self.drawn += 1
            if number >= skip:
                self.images += len(batch[1])
                yield self._engine.moved(part, draw)

    def prepare(self, batch: Batch, draw: Draw) -> Mapping[str, Prepared]:
        with self.prepare_noise(), self._engine.precision():
            return self.task.objective.prepare(batch, draw)

    def prepared(self, epoch: int, skip: int) -> Iterator[Mapping[str, Prepared]]:
        """The prepared batches of an epoch; on a CPU the next one is prepared on another core during a step."""

        def prepare(number: int, fed: Fed) -> Mapping[str, Prepared]:
            self.prepare_noise.at(epoch, number)
            return self.prepare(*fed)

        # Drawn on this thread, in order, so that the numbers do not depend on thread timing.
        jobs = (partial(prepare, number, fed) for number, fed in enumerate(self.fed(epoch, skip), skip))
        return one_ahead(jobs) if self._engine.device.type == "cpu" else (job() for job in jobs)


class _Loop:
    """All running tasks, resumed from a checkpoint if there is one."""

    def __init__(self, tasks: Sequence[Task], config: TrainConfig, engine: Engine) -> None:
        forwards: dict[Any, Forward] = {}
        graphs = engine.graphs and config.optimizer == "sgd"  # torch's own optimizers count steps on the CPU
        tasks = [replace(task, batches=apart(task.batches)) if graphs else task for task in tasks]
        self.runs = [TaskRun(task, config, engine, forwards) for task in tasks]
        self._config, self._engine = config, engine
        self._steps = [step for run in self.runs for step in run.steps.values()]
        self._noises = [*(run.prepare_noise for run in self.runs), *(step.noise for step in self._steps)]
        self._graph = StepGraph(self._all_tasks, self._steps, self._noises, engine.device) if graphs else None
        self._identity, self.averaging, self.position = "", False, Position()
        if config.checkpoints is not None:
            self._identity = fingerprint(config, self.runs, engine.way)
            self.position = config.checkpoints.restore(self._identity, self.runs) or self.position
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
        # Resume an epoch from its first draw and skip the finished batches; no other state records the position.
        start, self.position = self.position, Position()
        if start.epoch != epoch:
            start = Position(epoch, tuple(run.draws.get_state() for run in self.runs))
        totals = self._one_by_one(lr, start) if self._graph is None else self._together(self._graph, lr, start)
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
        return member if len(self.runs) == 1 else f"{k}/{member}"

    def _one_by_one(self, lr: float, start: Position) -> list[tuple[Tensor, int]]:
        """One task after another: a CPU has no room for more."""
        totals, done, device = list(start.totals), start.count, self._engine.device
        for run in self.runs[: len(totals)]:
            # Finished before the stop: only advance their generators to the end of the epoch.
            for _ in run.fed(start.epoch, skip=sys.maxsize):
                pass
        for run in self.runs[len(totals) :]:
            total, count = start.running.to(device) if done else torch.zeros(len(run.steps), device=device), done
            for prepared in run.prepared(start.epoch, skip=done):
                for step in run.steps.values():
                    step.noise.at(start.epoch, count)
                total = total + torch.stack([step(prepared[member], lr) for member, step in run.steps.items()])
                count += 1
                self._save(Position(start.epoch, start.draws, tuple(totals), count, total))
            totals.append((total, count))
            done = 0
        return totals

    def _together(self, graph: StepGraph, lr: float, start: Position) -> list[tuple[Tensor, int]]:
        """All tasks together, one launch per step: one batch of 128 leaves half of a large GPU idle."""
        sizes, count = [len(run.steps) for run in self.runs], start.count
        total = start.running.to(self._engine.device) if count else torch.zeros(sum(sizes), device=self._engine.device)
        for fed in zip_longest(*(run.fed(start.epoch, skip=count) for run in self.runs)):
            for noise in self._noises:
                noise.at(start.epoch, count)
            total = total + torch.cat(graph(fed, lr))
            count += 1
            self._save(Position(start.epoch, start.draws, (), count, total))
        return [(part, run.drawn) for part, run in zip(torch.split(total, sizes), self.runs, strict=True)]

    def _all_tasks(self, fed: Sequence[Fed | None], lr: Tensor) -> list[Tensor]:
        """The losses of a step of every task; zeros for those without a batch."""
        live = [(run, run.prepare(*one)) for run, one in zip(self.runs, fed, strict=True) if one is not None]
        jobs = [partial(step, inputs[member], lr) for run, inputs in live for member, step in run.steps.items()]
        losses = torch.split(torch.stack(self._engine.fan_out(jobs)), [len(run.steps) for run, _ in live])
        parts, pairs = iter(losses), zip(self.runs, fed, strict=True)
        return [lr.new_zeros(len(run.steps)) if one is None else next(parts) for run, one in pairs]

    def _save(self, position: Position) -> None:
        # All processes read, only the first writes.
        checkpoints = self._config.checkpoints
        if checkpoints is not None and self._engine.processes.rank == 0 and checkpoints.due():
            checkpoints.save(self._identity, position, self.runs)


def _copy(state: State) -> State:
    return State(trees.clone(state.params), trees.clone(state.buffers), state.frozen)
