"""The loop with a look at what came out: training can run away and stay finite, and then somebody must be told."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from modebridge import trees
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.config import TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.loop import Task, train
from modebridge.training.metrics import Epoch, Report
from modebridge.types import Objective, States

__all__ = ["train_and_look"]

FAR, RISEN = 4.0, 1.1
"""Times the loss of a uniform guess, and times the loss of the first epoch where that is above the guess."""

GROWN = 1000.0
"""Times the length of the weights that no training that works makes them grow."""


def train_and_look(
    objective: Objective,
    tasks: Sequence[Task],
    config: TrainConfig,
    classes: int,
    *,
    engine: Engine,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
) -> list[States]:
    """`train`, and one warning where a member ended worse than a guess or with weights that ran away.

    Worse than a guess is a mean training loss in the last epoch above four times log K, that of the uniform answer, or
    above log K and a tenth higher than in the first epoch. A loss that is not finite is an error of the loop itself.

    Args:
        objective: as the others, what `train` takes.
        tasks: see there.
        config: see there.
        classes: K.
        engine: see there.
        checkpoints: see there.
        report: see there.
    """
    first: dict[str, float] = {}
    last: dict[str, float] = {}

    def watch(epoch: Epoch) -> None:
        if epoch.number == 1:
            first.update(epoch.losses)
        last.update(epoch.losses)
        if report is not None:
            report(epoch)

    trained = train(objective, tasks, config, engine=engine, checkpoints=checkpoints, report=watch)
    # One is enough, whichever is found first: all members have the same settings.
    for sentence in chain(_losses(first, last, classes), _weights(tasks, trained)):
        warnings.warn(
            f"{sentence}: training ran away. Lower the learning rate (lr={config.lr:g}), or train longer.", stacklevel=3
        )
        break
    return trained


def _losses(first: Mapping[str, float], last: Mapping[str, float], classes: int) -> Iterator[str]:
    guess = math.log(classes)
    for member, loss in last.items():
        if loss > FAR * guess or loss > max(guess, RISEN * first.get(member, math.inf)):
            yield f"The training loss of '{member}' ended at {loss:.3g}, where a uniform guess has {guess:.3g}"


def _weights(tasks: Sequence[Task], trained: Sequence[States]) -> Iterator[str]:
    for task, states in zip(tasks, trained, strict=True):
        for member, state in states.items():
            before, after = float(trees.norm(task.start[member].params)), float(trees.norm(state.params))
            if after > GROWN * before > 0:
                times = f"{after / before:.3g} times as long, from {before:.3g} to {after:.3g}"
                yield f"The weights of '{member}' became {times}"
