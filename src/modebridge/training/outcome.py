"""The loop with a look at what came out: training can run away and stay finite, and then somebody must be told."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import torch

from modebridge import seeds, trees
from modebridge.batches import go_to_epoch
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.engine import Engine
from modebridge.training.epochs import Epoch, Report
from modebridge.training.loop import Task, train
from modebridge.training.train_config import TrainConfig
from modebridge.types import Batch, State, States

__all__ = ["train_and_look"]

RISEN, OVERSHOOT = 2.0, 50
"""Times the loss before training, or that of a uniform guess, at which a network has run away; in how many steps so.

The first steps may overshoot: after n of them the loss may be 1 + 50 / n times as high again.
"""

GROWN = 1000.0
"""Times the length of the weights that no training that works makes them grow."""


def train_and_look(
    tasks: Sequence[Task],
    config: TrainConfig,
    classes: int,
    *,
    engine: Engine,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
) -> list[States]:
    """`train`, and one warning where a member ended worse than it began or with weights that ran away.

    Looked at is only what ended with a training loss above log K, that of a uniform guess: its loss on one batch, with
    the same draws, before and after, should not have doubled (see `OVERSHOOT`). A loss that is not finite is an error
    of the loop itself.

    Args:
        tasks: as the others but K, what `train` takes.
        config: see there.
        classes: K.
        engine: see there.
        checkpoints: see there.
        report: see there.
    """
    last: dict[str, float] = {}
    images = 0

    def watch(epoch: Epoch) -> None:
        nonlocal images
        last.update(epoch.losses)
        images += epoch.images
        if report is not None:
            report(epoch)

    trained = train(tasks, config, engine=engine, checkpoints=checkpoints, report=watch)
    # One is enough, whichever is found first: all members have the same settings.
    seen = images / len(tasks)
    for sentence in chain(_losses(tasks, trained, last, classes, engine, seen), _weights(tasks, trained)):
        warnings.warn(f"{sentence}: training ran away; lower the learning rate (lr={config.lr:g}).", stacklevel=3)
        break
    return trained


def _losses(
    tasks: Sequence[Task],
    trained: Sequence[States],
    last: Mapping[str, float],
    classes: int,
    engine: Engine,
    seen: float,
) -> Iterator[str]:
    guess = math.log(classes)
    for k, (task, states) in enumerate(zip(tasks, trained, strict=True)):
        for member, state in states.items():
            ended = last.get(member if len(tasks) == 1 else f"{k}/{member}", 0.0)
            if ended <= guess:
                continue
            go_to_epoch(task.batches, 0)
            batch = next(iter(task.batches))
            before, after = _before_and_after(task, member, state, engine, batch)
            overshoot = 1 + OVERSHOOT * len(batch[1]) / max(seen, len(batch[1]))
            if not after <= RISEN * overshoot * max(before, guess):
                yield (
                    f"The training loss of '{member}' rose from {before:.3g} to {after:.3g}, where a uniform guess has "
                    f"{guess:.3g}"
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


def _weights(tasks: Sequence[Task], trained: Sequence[States]) -> Iterator[str]:
    for task, states in zip(tasks, trained, strict=True):
        start = task.objective.start()
        for member, state in states.items():
            before, after = float(trees.norm(start[member].params)), float(trees.norm(state.params))
            if after > GROWN * before > 0:
                times = f"{after / before:.3g} times as long, from {before:.3g} to {after:.3g}"
                yield f"The weights of '{member}' became {times}"
