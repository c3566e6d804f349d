"""How well networks fit their data: before bridging, which decides what a bridge learns, and after training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modebridge import seeds, trees
from modebridge.batches import check_batch, check_labels, go_to_epoch
from modebridge.modes import Mode
from modebridge.nets import frozen_copy, run
from modebridge.training.checks import runs_on
from modebridge.training.engine import Engine
from modebridge.training.epochs import Epoch
from modebridge.training.loop import Task
from modebridge.types import Batch, Batches, State, States

__all__ = ["Fit", "problems", "training_accuracy"]

LABELS_BELOW = 0.95
"""Below this training accuracy a bridge learns from labels too.

Measured (docs/frontier.md): at 70 and 89 % a head on labels gains much, above 99 % little, or it costs.
"""
CUTMIX_FROM = 0.8
"""From this training accuracy on heads are trained with CutMix: at 70 % it gains nothing, or costs."""
IMAGES = 1000
"""How many training images to look at, rounded up to whole batches."""

RISEN, OVERSHOOT = 2.0, 50
"""Training has diverged if the loss exceeds RISEN times the loss before training, or times that of a uniform guess.

The first steps may overshoot: after n steps the limit is 1 + OVERSHOOT / n times as high.
"""

GROWN = 1000.0
"""Growth of the weights' norm that no successful training reaches."""


@dataclass(frozen=True)
class Fit:
    """How well networks predict their training labels.

    Args:
        accuracy: share of right predictions; of several networks, the lowest.
        images: how many were looked at.
        classes: K.
    """

    accuracy: float
    images: int
    classes: int

    @property
    def needs_labels(self) -> bool:
        """Whether labels would teach a bridge much.

        Not if they are predicted no better than by chance (within three standard errors): then they are probably no
        real labels, which imitation does not need.

        >>> [Fit(accuracy, 1000, 10).needs_labels for accuracy in (0.1, 0.2, 0.94, 0.95)]
        [False, True, True, False]
        """
        chance = 1 / max(self.classes, 1)
        spread = math.sqrt(chance * (1 - chance) / max(self.images, 1))
        return chance + 3 * spread < self.accuracy < LABELS_BELOW

    @property
    def suits_cutmix(self) -> bool:
        """Whether strongly mixed images show where networks differ better than plain ones."""
        return self.accuracy >= CUTMIX_FROM


@torch.no_grad()
def training_accuracy(net: nn.Module, modes: Sequence[Mode], train: Batches, engine: Engine) -> Fit:
    """Run modes on the first batches of their training data, as drawn in epoch 0, augmentation included."""
    base, states = frozen_copy(net).to(engine.device), [mode.to(engine.device) for mode in modes]
    right, seen, classes = [0] * len(modes), 0, 0
    go_to_epoch(train, 0)
    for item in train:
        batch = check_batch(item, "train")
        (inputs, labels), _ = engine.moved(batch, {})
        seen += len(labels)
        with runs_on(net, batch[0], "train", engine.device), engine.precision():
            for k, state in enumerate(states):
                logits = run(base, state.params, state.buffers, inputs)
                right[k] += int((logits.argmax(dim=1) == labels).sum())
        classes = logits.shape[-1]
        check_labels(batch[1], classes, "train")
        if seen >= IMAGES:
            break
    return Fit(min(right) / max(seen, 1), seen, classes)


def problems(
    tasks: Sequence[Task], trained: Sequence[States], epochs: Sequence[Epoch], classes: int, engine: Engine
) -> Iterator[str]:
    """Members that ended worse than they started, or whose weights exploded: training can diverge and stay finite.

    Only members whose final training loss is above log K, that of a uniform guess, are checked: their loss on one
    batch, with the same draws, must not have doubled (see `OVERSHOOT`). A loss that is not finite raises an error in
    the loop itself.
    """
    uniform = math.log(classes)
    seen = sum(epoch.images for epoch in epochs) / len(tasks)
    for k, (task, states) in enumerate(zip(tasks, trained, strict=True)):
        start = task.objective.start()
        for member, state in states.items():
            label = member if len(tasks) == 1 else f"{k}/{member}"
            if epochs and epochs[-1].losses[label] > uniform:
                go_to_epoch(task.batches, 0)
                batch = next(iter(task.batches))
                before, after = _before_and_after(task, member, state, engine, batch)
                overshoot = 1 + OVERSHOOT * len(batch[1]) / max(seen, len(batch[1]))
                if not after <= RISEN * overshoot * max(before, uniform):
                    yield (
                        f"The training loss of '{member}' rose from {before:.3g} to {after:.3g}, where a uniform guess "
                        f"has {uniform:.3g}"
                    )
            old, new = float(trees.norm(start[member].params)), float(trees.norm(state.params))
            if new > GROWN * old > 0:
                yield f"The norm of the weights of '{member}' grew {new / old:.3g} times, from {old:.3g} to {new:.3g}"


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
