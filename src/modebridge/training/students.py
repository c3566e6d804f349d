"""Distill several networks into one: students learn their teachers' mean probability on mixed-up images."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from modebridge import seeds
from modebridge.batches import first_batch, flatten, go_to_epoch, take_rows
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.matching import DistillationLoss, draw_mixing, mixed
from modebridge.modes import Mode, check_modes, fresh_weights
from modebridge.nets import frozen_copy
from modebridge.objectives import StudentObjective, StudentPlan, Teacher
from modebridge.training.checks import check_mixing, check_train, classes_of, stale_statistics, trainable
from modebridge.training.config import DEFAULT, TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.fit import refreshed, run_training
from modebridge.types import Batch, Batches, Inputs

STUDENT_MIXUP = 1.0
"""The default alpha of mixup."""


def distill(
    net: nn.Module,
    teachers: Sequence[Teacher] | Teacher,
    train: Batches,
    config: TrainConfig = DEFAULT,
    *,
    student: nn.Module | None = None,
    start: Mode | None = None,
    loss: DistillationLoss | None = None,
    valid: Batches | None = None,
) -> Mode:
    """Train one network to predict the mean of several; it costs as much as one network at prediction time.

    Training longer than a mode helps (two to three times the epochs on our data), and so does mixup, whose alpha is 1
    unless the config sets it or CutMix.

    Args:
        net: the network that the teachers are modes of.
        teachers: modes, ensembles, or both. Every member of an ensemble counts once, before the ensemble's temperature
            and regardless of how it averages.
        train: yields (images, labels); labels are used only if the loss needs them.
        config: all options of training, and the seed of new weights; "best" keeps the lowest validation loss.
        student: another architecture for the student; None uses `net`.
        start: the student's initial weights, for example a mode; None initializes new ones.
        loss: see `DistillationLoss`; None is the KL to the teachers' mean, `PAPER_LOSS` is the authors' (with mixup=0).
        valid: held-out data for `config.keep == "best"`.

    Returns:
        The student, a mode like any other: it can be exported, aligned, bridged.
    """
    teachers = _listed(teachers)
    if not teachers:
        raise ModebridgeError("Expected teachers to distill, but got none; pass at least one mode.")
    student = student or net
    start = start or fresh_mode(student, config.seed)
    plan = StudentPlan(student, start, teachers, loss or DistillationLoss())
    return fit_students(net, {"student": plan}, train, config, valid=valid)["student"]


def fit_students(
    net: nn.Module,
    plans: Mapping[str, StudentPlan],
    train: Batches,
    config: TrainConfig = DEFAULT,
    *,
    valid: Batches | None = None,
) -> dict[str, Mode]:
    """Train several students in one pass over the data: every teacher runs once per batch.

    Each gets the same result as if trained alone. The arguments are those of `distill`; a plan without teachers learns
    (mixed-up) labels.
    """
    if not plans:
        raise ModebridgeError("Expected at least one student to train, but got none; pass some plans.")
    engine = Engine.of(config, net)
    for plan in plans.values():
        trainable(plan.net)
        check_modes(plan.net, [plan.start], 1, "a student")
    stale = stale_statistics([plan.net for plan in plans.values()], config)
    batch = first_batch(train, "train")
    # Checked with every architecture among the students.
    for plan in {repr(plan.net): plan for plan in plans.values()}.values():
        data = check_train(plan.net, plan.start, train, engine, batch=batch)
    mixup, cutmix = config.mixing(STUDENT_MIXUP)
    check_mixing(mixup, cutmix, batch[0])
    for plan in plans.values():
        _check_teachers(net, plan.teachers, batch[0], data.classes)
    objective = StudentObjective(frozen_copy(net).to(engine.device), plans, data.classes, mixup, cutmix)
    engine.speed_up(objective.bases)
    first = next(iter(plans.values()))
    (states,) = run_training(
        [objective], [data], [config.seed], "student", first.net, first.start, valid, config, engine
    )
    students = objective.result(states)
    if stale:
        # The statistics collected in training belong to those weights, not to their mean. Mixed-up images are used, as
        # in all training of students: on digits, statistics of plain images cost .02 to .03 of NLL.
        batches = MixedBatches(engine.feed(data), mixup, cutmix, config.seed)
        students = {name: refreshed(plan.net, students[name], batches, engine) for name, plan in plans.items()}
    return {name: mode.to("cpu") for name, mode in students.items()}


def fresh_mode(net: nn.Module, seed: int) -> Mode:
    """The network as if newly built: new weights and reset running statistics."""
    copy = frozen_copy(net)
    for module in copy.modules():
        reset = getattr(module, "reset_running_stats", None)
        if callable(reset):
            reset()
    return Mode(fresh_weights(net, seed), Mode.from_module(copy).buffers)


def _listed(given: Sequence[Teacher] | Teacher) -> tuple[Teacher, ...]:
    """Teachers as a tuple, even if only one is given."""
    return (given,) if isinstance(given, Mode | Ensemble) else tuple(given)


@torch.no_grad()
def _check_teachers(net: nn.Module, teachers: Sequence[Teacher], images: Inputs, classes: int) -> None:
    """Raise an error if a mode does not fit the network, or a teacher's number of classes differs from the student's.

    Args:
        net: the network of the teachers that are modes.
        teachers: all teachers.
        images: a few images.
        classes: K of the student.
    """
    image = take_rows(images, slice(0, 1))
    for teacher in teachers:
        if isinstance(teacher, Mode):
            check_modes(net, [teacher], 1, "distillation")
            count = classes_of(net, teacher, image, "train")
        elif isinstance(teacher, Ensemble):
            # Run a copy, on the image's device.
            here = next(iter(flatten(image).values())).device
            count = copy.deepcopy(teacher).to(here).members(image).shape[-1]
        else:
            raise ModebridgeError(
                f"Expected teachers to be modes or ensembles, but got {type(teacher).__name__}; create a mode with "
                "Mode.from_module."
            )
        if count != classes:
            raise ModebridgeError(
                f"Expected teachers with {classes} classes like the student, but one has {count}; use a student with "
                "the same last layer."
            )


class MixedBatches:
    """Batches mixed as in training (see `draw_mixing`), with their own draws."""

    def __init__(self, batches: Batches, mixup: float, cutmix: float, seed: int) -> None:
        self._batches, self._mixup, self._cutmix, self._seed = batches, mixup, cutmix, seed

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, if the batches have epochs."""
        go_to_epoch(self._batches, epoch)

    def __iter__(self) -> Iterator[Batch]:
        generator = seeds.generator(self._seed, "mixed batches")
        for images, labels in self._batches:
            yield mixed(images, draw_mixing(len(labels), self._mixup, self._cutmix, generator)), labels
