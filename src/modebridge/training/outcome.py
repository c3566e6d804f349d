"""The loop, with a progress bar and a check of the outcome: training can diverge and stay finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypedDict

import torch
from torch import nn

from modebridge import seeds, trees
from modebridge.batches import Checked, go_to_epoch
from modebridge.modes import Mode, refresh_statistics
from modebridge.nets import frozen_copy
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.checks import held_out
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.epochs import Epoch, Report
from modebridge.training.loop import Task, train
from modebridge.types import Batch, Batches, Objective, State, States

__all__ = ["How", "counted", "refreshed", "run_training"]

RISEN, OVERSHOOT = 2.0, 50
"""Training has diverged if the loss exceeds RISEN times the loss before training, or times that of a uniform guess.

The first steps may overshoot: after n steps the limit is 1 + OVERSHOOT / n times as high.
"""

GROWN = 1000.0
"""Growth of the weights' norm that no successful training reaches."""


class How(TypedDict):
    """The arguments that all functions for fitting share; see `fit_mode`."""

    config: TrainConfig
    valid: Batches | None
    engine: Engine | None
    checkpoints: Checkpoints | None
    report: Report | None
    progress: bool | None


def run_training(
    objectives: Sequence[Objective[Any]],
    data: Sequence[Checked],
    task_seeds: Sequence[int],
    title: str,
    net: nn.Module,
    mode: Mode,
    *,
    config: TrainConfig,
    valid: Batches | None,
    engine: Engine | None,
    checkpoints: Checkpoints | None,
    report: Report | None,
    progress: bool | None,
) -> list[States]:
    """`train`, with a progress bar, and one warning if a member ended worse than it started or its weights exploded.

    Only members whose final training loss is above log K, that of a uniform guess, are checked: their loss on one
    batch, with the same draws, must not have doubled (see `OVERSHOOT`). A loss that is not finite raises an error in
    the loop itself.

    There is one task for each objective, with its data and its seed. `title` is the text in front of the bar, `net` and
    `mode` are used to check the validation data; for the other arguments see `How`.
    """
    engine = engine or Engine.of(config, net)
    config = replace(
        config,
        checkpoints=checkpoints or config.checkpoints,
        callbacks=(*([] if report is None else [report]), *config.callbacks),
        progress=config.progress if progress is None else progress,
    )
    kept_out = held_out(net, mode, valid, config, engine)
    tasks = [
        Task(objective, batches, kept_out, seed)
        for objective, batches, seed in zip(objectives, data, task_seeds, strict=True)
    ]
    last: dict[str, float] = {}
    images = 0

    def watch(epoch: Epoch) -> None:
        nonlocal images
        last.update(epoch.losses)
        images += epoch.images

    trained = train(tasks, config, engine=engine, title=title, report=watch)
    # The first problem is enough: all members have the same settings.
    seen = images / len(tasks)
    losses = _loss_problems(tasks, trained, last, data[0].classes, engine, seen)
    for problem in chain(losses, _weight_problems(tasks, trained)):
        warnings.warn(f"{problem}: training diverged; lower the learning rate (lr={config.lr:g}).", stacklevel=3)
        break
    return trained


def counted(count: int, noun: str) -> str:
    """The title of a bar.

    >>> counted(1, "curve"), counted(3, "curve")
    ('curve', '3 curves')
    """
    return noun if count == 1 else f"{count} {noun}s"


def refreshed(net: nn.Module, mode: Mode, batches: Batches, engine: Engine) -> Mode:
    """A mode with statistics estimated on these batches."""
    placed = frozen_copy(net).to(engine.device)
    return Mode(mode.params, refresh_statistics(placed, mode.params, mode.buffers, batches))


def _loss_problems(
    tasks: Sequence[Task],
    trained: Sequence[States],
    last: Mapping[str, float],
    classes: int,
    engine: Engine,
    seen: float,
) -> Iterator[str]:
    uniform = math.log(classes)
    for k, (task, states) in enumerate(zip(tasks, trained, strict=True)):
        for member, state in states.items():
            last_loss = last.get(member if len(tasks) == 1 else f"{k}/{member}", 0.0)
            if last_loss <= uniform:
                continue
            go_to_epoch(task.batches, 0)
            batch = next(iter(task.batches))
            before, after = _before_and_after(task, member, state, engine, batch)
            overshoot = 1 + OVERSHOOT * len(batch[1]) / max(seen, len(batch[1]))
            if not after <= RISEN * overshoot * max(before, uniform):
                yield (
                    f"The training loss of '{member}' rose from {before:.3g} to {after:.3g}, where a uniform guess has "
                    f"{uniform:.3g}"
                )


@torch.no_grad()
def _before_and_after(task: Task, member: str, end: State, engine: Engine, batch: Batch) -> tuple[float, float]:
    """The loss of a member on one batch, before and after training, with the same draws."""
    objective = task.objective
    draw = objective.draw(len(batch[1]), seeds.generator(task.seed, "outcome"))
    with engine.precision(), seeds.borrowed(task.seed, engine.device):
        prepared = objective.prepare(*engine.moved(batch, draw))[member]
        losses = []
        for state in (objective.start()[member], end):
            # Cloned: the forward pass writes statistics into the buffers.
            params, buffers, frozen = (
                trees.to(trees.clone(tree), engine.device) for tree in (state.params, state.buffers, state.frozen)
            )
            losses.append(float(objective.program(member)(State(params, buffers, frozen), prepared)))
    return losses[0], losses[1]


def _weight_problems(tasks: Sequence[Task], trained: Sequence[States]) -> Iterator[str]:
    for task, states in zip(tasks, trained, strict=True):
        start = task.objective.start()
        for member, state in states.items():
            before, after = float(trees.norm(start[member].params)), float(trees.norm(state.params))
            if after > GROWN * before > 0:
                yield (
                    f"The norm of the weights of '{member}' grew {after / before:.3g} times, from {before:.3g} to "
                    f"{after:.3g}"
                )
