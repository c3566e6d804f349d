"""Distill several networks into one: students learn their teachers' mean probability on mixed-up images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from modebridge.errors import ModebridgeError
from modebridge.losses import DistillationLoss
from modebridge.mixing import MixedBatches
from modebridge.modes import Mode, check_modes, fresh_weights
from modebridge.nets import frozen_copy
from modebridge.objectives import StudentObjective, StudentPlan, Teacher
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.checks import check_mixing, check_train, stale_statistics, trainable
from modebridge.training.config import DEFAULT, TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.epochs import Report
from modebridge.training.outcome import How, counted, refreshed, run_training
from modebridge.training.teach import check_teachers, listed_teachers
from modebridge.types import Batches

__all__ = ["distill", "fit_students", "plan_student"]


def distill(
    net: nn.Module,
    modes: Sequence[Teacher] | Teacher,
    train_data: Batches,
    *,
    student: nn.Module | None = None,
    start: Mode | None = None,
    loss: DistillationLoss | None = None,
    mixup: float | None = None,
    cutmix: float | None = None,
    config: TrainConfig = DEFAULT,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> Mode:
    """Train one network to predict the mean of several; it costs as much as one network at prediction time.

    Training longer than a mode helps (two to three times the epochs on our data), and so does mixup.

    Args:
        net: the network that the teachers are modes of.
        modes: the teachers: modes, bridged ensembles, or both. Every member of an ensemble counts once, before the
            ensemble's temperature and regardless of how it averages.
        train_data: yields (images, labels); labels are used only if the loss needs them.
        student: another architecture for the student; None uses `net`.
        start: the student's initial weights, for example a mode; None initialises new ones.
        loss: see `DistillationLoss`; None is the KL to the teachers' mean, `PAPER_LOSS` is the authors' (with mixup=0).
        mixup: alpha of the per-sample mixup; 0 turns it off. If neither it nor cutmix is given, it is 1.
        cutmix: alpha of CutMix, for images only; 0 turns it off. With mixup as well, each batch gets one of the two.
        config: epochs, optimiser, and the seed of new weights; "best" keeps the lowest validation loss.
        valid: held-out data for `config.keep == "best"`.
        engine: device and precision; None means the CPU in fp32.
        checkpoints: where to save progress and resume from.
        report: called after every epoch.
        progress: show a progress bar; None shows it in terminals and notebooks unless there is a `report`.

    Returns:
        The student, a mode like any other: it can be exported, aligned, bridged.
    """
    teachers = listed_teachers(modes)
    if not teachers:
        raise ModebridgeError("Expected teachers to distill, but got none; pass at least one mode.")
    plan = plan_student(student or net, teachers, start=start, loss=loss, seed=config.seed)
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    return fit_students(net, {"student": plan}, train_data, mixup=mixup, cutmix=cutmix, **how)["student"]


def plan_student(
    net: nn.Module,
    teachers: Sequence[Teacher],
    *,
    start: Mode | None = None,
    loss: DistillationLoss | None = None,
    seed: int = 0,
) -> StudentPlan:
    """Plan a student before training it.

    Args:
        net: its architecture.
        teachers: the teachers whose mean probability it learns; empty for the control that learns (mixed-up) labels.
        start: the initial weights; None initialises new ones.
        loss: the loss it minimises; None is the KL to the teachers' mean.
        seed: seed of new weights.
    """
    trainable(net)
    teachers = listed_teachers(teachers)
    if start is None:
        start = _fresh_mode(net, seed)
    check_modes(net, [start], 1, "a student")
    return StudentPlan(net, start, teachers, loss or DistillationLoss())


def fit_students(
    net: nn.Module,
    plans: Mapping[str, StudentPlan],
    train_data: Batches,
    *,
    mixup: float | None = None,
    cutmix: float | None = None,
    config: TrainConfig = DEFAULT,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> dict[str, Mode]:
    """Train several students in one pass over the data: every teacher runs once per batch.

    Each gets the same result as if trained alone. The arguments are those of `distill`; `plans` come from
    `plan_student`.
    """
    if not plans:
        raise ModebridgeError("Expected at least one student to train, but got none; pass some plans.")
    engine = engine or Engine.of(config, net)
    stale = stale_statistics([plan.net for plan in plans.values()], config)
    # Checked with every architecture among the students.
    for plan in {repr(plan.net): plan for plan in plans.values()}.values():
        data = check_train(plan.net, plan.start, train_data, engine)
    if mixup is None and cutmix is None:
        mixup, cutmix = config.mixup, config.cutmix
    mixup, cutmix = (1.0, 0.0) if mixup is None and cutmix is None else (mixup or 0.0, cutmix or 0.0)
    check_mixing(mixup, cutmix, data)
    for plan in plans.values():
        check_teachers(net, plan.teachers, data, "student")
    objective = StudentObjective(
        frozen_copy(net).to(engine.device),
        plans,
        data.classes,
        mixup,
        cutmix,
    )
    engine.speed_up(objective.bases)
    first = next(iter(plans.values()))
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    title = counted(len(plans), "student")
    (states,) = run_training([objective], [data], [config.seed], title, first.net, first.start, **how)
    students = objective.result(states)
    if stale:
        # The statistics collected in training belong to those weights, not to their mean. Mixed-up images are used, as
        # in all training of students: on digits, statistics of plain images cost .02 to .03 of NLL.
        batches = MixedBatches(engine.feed(data), mixup, cutmix, config.seed)
        students = {name: refreshed(plan.net, students[name], batches, engine) for name, plan in plans.items()}
    return {name: mode.to("cpu") for name, mode in students.items()}


def _fresh_mode(net: nn.Module, seed: int) -> Mode:
    """The network as if newly built: new weights and reset running statistics."""
    copy = frozen_copy(net)
    for module in copy.modules():
        reset = getattr(module, "reset_running_stats", None)
        if callable(reset):
            reset()
    return Mode(fresh_weights(net, seed), Mode.from_module(copy).buffers)
