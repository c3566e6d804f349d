"""The one loop: it trains whatever objective it is given and knows nothing of curves or bridges."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from modebridge import trees
from modebridge.errors import ModebridgeError
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.metrics import Epoch, Report
from modebridge.training.processes import Processes, Turns
from modebridge.training.runner import Runner, Task
from modebridge.types import Objective, State, States

__all__ = ["Task", "train"]


def train(
    objective: Objective,
    tasks: Sequence[Task],
    config: TrainConfig,
    *,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
) -> list[States]:
    """Minimise the sum of the members' losses of each task by SGD, tasks side by side where the device is wide enough.

    Tasks share nothing but the architecture: each ends where it would have ended alone.

    Args:
        objective: what to train.
        tasks: at least one, all of one architecture.
        config: epochs and optimiser.
        engine: device and precision; None is the CPU in fp32.
        checkpoints: where to save the state every so often and to go on from; the end is the same to the last bit as
            without a stop, given loaders that can repeat an epoch (ours do; `set_epoch`).
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
    runner = Runner(objective, tasks, config, engine)
    if checkpoints is not None:
        runner.resume(checkpoints)
    for epoch in range(runner.begun, config.epochs):
        begin = time.perf_counter()
        lr = config.lr * config.factor(epoch)
        losses, images = runner.epoch(epoch, lr)
        scores: dict[str, float] = {}
        if config.keep == "best":
            for k, (task, states, kept) in enumerate(zip(tasks, runner.states(), runner.best, strict=True)):
                found = _keep_best(objective, task, states, kept, engine.processes)
                scores |= {runner.label(k, member): score for member, score in found.items()}
        if report is not None:
            report(Epoch(epoch + 1, config.epochs, lr, losses, scores, images, time.perf_counter() - begin))
    return [
        {member: kept[member][1] if member in kept else _copy(state) for member, state in states.items()}
        for states, kept in zip(runner.states(), runner.best, strict=True)
    ]


def _keep_best(
    objective: Objective, task: Task, states: States, kept: dict[str, tuple[float, State]], processes: Processes
) -> dict[str, float]:
    assert task.valid is not None
    ours = Turns(task.valid, processes)
    found = (task.validate or objective.validate)(states, ours)
    scores = processes.mean_score(found, ours.seen)
    for member, score in scores.items():
        if not math.isfinite(score):
            raise ModebridgeError(
                f"Expected the validation score of '{member}' to be finite, but got {score}; check the validation data."
            )
        if member not in kept or score < kept[member][0]:
            kept[member] = (score, _copy(states[member]))
    return scores


def _copy(state: State) -> State:
    return State(trees.clone(state.params), trees.clone(state.buffers), state.frozen)
