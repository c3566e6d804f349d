"""Fit students: one network that imitates several, or learns mixed labels."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from modebridge import seeds as random
from modebridge.batches import Mapped, check_loader, first_batch, flatten, take_rows
from modebridge.ensembles import Cascade, Ensemble
from modebridge.errors import ModebridgeError
from modebridge.matching import DistillationLoss, draw_mixing, mixed
from modebridge.modes import Mode, Trained, check_modes, check_net, to_mode
from modebridge.nets import fresh_weights, frozen_copy
from modebridge.objectives import StudentObjective, StudentPlan, Teacher
from modebridge.training.bridging import check_chance
from modebridge.training.checks import (
    check_config,
    check_train,
    mixing_of,
    outputs_of,
    run_training,
    trainable,
    warn_if_worse,
)
from modebridge.training.config import DEFAULT, Engine, TrainConfig
from modebridge.training.fit import refreshed, stale_statistics
from modebridge.types import Batches, Inputs

STUDENT_MIXUP = 1.0  # the default alpha for students


def distill(
    net: nn.Module,
    teachers: Sequence[Trained | Ensemble] | Teacher | Cascade,
    train: Batches,
    config: TrainConfig = DEFAULT,
    *,
    student: nn.Module | None = None,
    start: Trained | None = None,
    loss: DistillationLoss | None = None,
    valid: Batches | None = None,
) -> Mode:
    """Train one network to predict the mean of several; it costs as much as one network at prediction time.

    Training longer than a mode helps (two to three times the epochs on our data), and so does mixup, whose alpha is 1
    unless the config sets it or CutMix.

    Args:
        net: the network that the teachers are modes of.
        teachers: modes (or modules, state dicts, paths), ensembles, or both. Every member of an ensemble counts once,
            before the ensemble's temperature and regardless of how it averages.
        train: yields (images, labels); labels are used only if the loss needs them.
        config: all options of training, and the seed of new weights; "best" keeps the lowest validation loss.
        student: another architecture for the student; None uses `net`.
        start: the student's initial weights: a mode, for fine-tunes of a pretrained network. None initializes new ones.
        loss: see `DistillationLoss`; None is the KL to the teachers' mean, `PAPER_LOSS` is the authors' (with mixup=0).
        valid: held-out data for `config.keep == "best"`, and to warn if the student is worse than the first
            network of the teachers.

    Returns:
        The student, a mode like any other: it can be exported, aligned, bridged.

    >>> net, train = nn.Linear(4, 3), [(torch.rand(8, 4), torch.arange(8) % 3)]
    >>> teachers = [Mode.from_module(nn.Linear(4, 3)) for _ in range(2)]
    >>> ensemble = Ensemble(net, [distill(net, teachers, train)])
    """
    check_config(config)
    check_net(net)
    if isinstance(teachers, Cascade):
        teachers = teachers.ensemble
    several: Sequence[Any] = teachers if isinstance(teachers, list | tuple) else (teachers,)
    teachers = tuple(one if isinstance(one, Ensemble) else to_mode(net, one) for one in several)
    if not teachers:
        raise ModebridgeError("Expected teachers to distill, but got none; pass at least one mode.")
    student = net if student is None else student
    check_net(student, "student")
    first_weights = fresh_mode(student, config.seed) if start is None else to_mode(student, start)
    plan = StudentPlan(student, first_weights, teachers, loss or DistillationLoss())
    one = teachers[0]
    base, first = (net, one) if isinstance(one, Mode) else (one.bases[0], one.first)
    check_loader(train, "train")
    try:
        check_modes(base, [first], 1, "distillation")
    except ModebridgeError as error:
        hint = "Pass teachers of another architecture as Ensemble(their_net, [mode])."
        raise ModebridgeError(f"{error} {hint}") from error
    with torch.random.fork_rng(devices=[]):  # a look at the data must not change what loaders draw
        modes = [teacher for teacher in teachers if isinstance(teacher, Mode)]
        network, looked_at = (net, modes) if modes else (base, [first])
        check_chance(network, looked_at, train, Engine.of(config, net), "teacher")
    trained = fit_students(net, {"student": plan}, train, config, valid=valid)["student"]
    if valid is not None:
        hint = "start from a teacher's weights (start=)"
        warn_if_worse(Ensemble(base, [first]), Ensemble(student, [trained]), valid, config, "With the student", hint)
    return trained


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
    check_config(config)
    engine = Engine.of(config, net)
    for plan in plans.values():
        trainable(plan.net)
        check_modes(plan.net, [plan.start], 1, "a student")
    stale = stale_statistics([plan.net for plan in plans.values()], config)
    batch = first_batch(train, "train")
    # Checked with every architecture among the students.
    nets = {repr(plan.net): plan for plan in plans.values()}.values()
    checked = [check_train(plan.net, plan.start, train, engine, batch) for plan in nets]
    data = max(checked, key=lambda one: one.least)
    mixup, cutmix = mixing_of(config, STUDENT_MIXUP, batch[0])
    for plan in plans.values():
        check_teachers(net, plan.teachers, batch[0], data.outputs)
    objective = StudentObjective(frozen_copy(net).to(engine.device), plans, data.outputs[-1], mixup, cutmix)
    engine.speed_up(objective.bases)
    first = next(iter(plans.values()))
    seeds, start = [config.seed], first.start
    (states,) = run_training([objective], [data], seeds, "student", first.net, start, valid, config, engine)
    students = objective.result(states)
    if stale:
        # Mixed-up images are used, as in all training of students: on digits, statistics of plain images cost .02 to
        # .03 of NLL.
        for name, plan in plans.items():
            batches = _mixed(engine.feed(data), mixup, cutmix, config.seed)
            students[name] = refreshed(plan.net, students[name], batches, engine)
    return {name: mode.to("cpu") for name, mode in students.items()}


def fresh_mode(net: nn.Module, seed: int) -> Mode:
    """The network as if newly built: new weights, except for frozen ones, and reset running statistics."""
    new, learned = frozen_copy(net), {name for name, one in net.named_parameters() if one.requires_grad}
    for module in new.modules():
        if callable(reset := getattr(module, "reset_running_stats", None)):
            reset()
    mode, fresh = Mode.from_module(new), fresh_weights(net, seed)
    return replace(mode, params={**mode.params, **{name: fresh[name] for name in fresh if name in learned}})


@torch.no_grad()
def check_teachers(net: nn.Module, teachers: Sequence[Mode | Ensemble], images: Inputs, outputs: Sequence[int]) -> None:
    """Raise an error if a mode does not fit the network, or a teacher does not have the student's `outputs`."""
    image = take_rows(images, slice(0, 1))
    for teacher in teachers:
        if isinstance(teacher, Mode):
            check_modes(net, [teacher], 1, "distillation")
            found = outputs_of(net, teacher, image, "train")
        else:
            # Run a copy, on the image's device.
            here = next(iter(flatten(image).values())).device
            found = tuple(copy.deepcopy(teacher).to(here).table(image).shape[2:])
        if found != tuple(outputs):
            raise ModebridgeError(
                f"Expected teachers with outputs of {tuple(outputs)}, classes last, like the student, but one has "
                f"{found}; use a student with the same last layer."
            )


def _mixed(batches: Batches, mixup: float, cutmix: float, seed: int) -> Mapped:
    """Batches mixed as in training (see `draw_mixing`), with their own draws."""
    generator = random.generator(seed, "mixed batches")
    return Mapped(
        batches, lambda batch: (mixed(batch[0], draw_mixing(len(batch[1]), mixup, cutmix, generator)), batch[1])
    )
