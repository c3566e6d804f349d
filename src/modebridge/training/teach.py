"""Fit taught curves, and check teachers before training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from modebridge.batches import Checked, flatten, take_rows
from modebridge.curves import BezierCurve, CurveKind, PinStart, Polychain, check_r, start_curve
from modebridge.distillation import TaughtCurves, Teacher
from modebridge.ensembles import BridgedEnsemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes
from modebridge.nets import frozen_copy
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.checks import check_mixing, check_train, classes_of, trainable
from modebridge.training.config import DEFAULT, TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.epochs import Report
from modebridge.training.outcome import How, counted, run_training
from modebridge.types import Batches

__all__ = ["check_teachers", "fit_taught_curves", "listed_teachers"]


def fit_taught_curves(
    net: nn.Module,
    pairs: Mapping[str, tuple[Mode, Mode]],
    teachers: Sequence[Teacher] | Teacher,
    train_data: Batches,
    *,
    mixup: float = 1.0,
    kind: CurveKind = "bezier",
    pins: int = 1,
    pin_start: PinStart = "midpoint",
    r: float = 0.5,
    config: TrainConfig = DEFAULT,
    seeds: Mapping[str, int] | None = None,
    valid: Batches | None = None,
    statistics: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> dict[str, BezierCurve | Polychain]:
    """Train several curves between students in one pass over the data: every teacher runs once per batch.

    At each step the network at one random r of each curve learns the teachers' mean probability on mixed-up images,
    with the loss of students. Each curve gets the same result as if trained alone.

    Args:
        net: the network of all modes, as in `fit_curve`.
        pairs: the two ends of each curve, by name.
        teachers: the teachers of the ends: modes, bridged ensembles, or both, as in `distill`.
        train_data: yields (images, labels); labels are not used.
        mixup: alpha of the per-sample mixup; 0 turns it off.
        kind: "bezier" or "polychain".
        pins: number of control points to learn per curve.
        pin_start: "midpoint", or "random" as in the authors' code.
        r: the position where batch norm statistics are kept and validation runs.
        config: epochs and optimiser; "best" keeps the lowest validation loss at r of each curve.
        seeds: seeds of random pins, by name; the default is `config.seed`.
        valid: held-out data for `config.keep == "best"`.
        statistics: batches to re-estimate batch norm on, mixed up as in training; None uses `train_data`.
        engine: device and precision; None means the CPU in fp32.
        checkpoints: where to save progress and resume from.
        report: called after every epoch.
        progress: show a progress bar; None shows it in terminals and notebooks unless there is a `report`.
    """
    check_r(r)
    if not isinstance(pairs, Mapping):
        raise ModebridgeError(
            f"Expected pairs to be a dict from names to the two ends of a curve, but got {type(pairs).__name__}; name "
            'them, as {"a": (start, end)}.'
        )
    teachers = listed_teachers(teachers)
    if not pairs:
        raise ModebridgeError("Expected at least one pair of modes, but got none; pass the two ends of a curve.")
    if not teachers:
        raise ModebridgeError(
            "Expected teachers for curves to learn from, but got none; pass at least one mode, or None for labels."
        )
    engine = engine or Engine.of(config, net)
    learns = trainable(net)
    curves = {
        name: start_curve(
            net, *ends, kind=kind, pins=pins, pin_start=pin_start, seed=(seeds or {}).get(name, config.seed)
        )
        for name, ends in pairs.items()
    }
    first = next(iter(pairs.values()))[0]
    data = check_train(net, first, train_data, engine)
    check_mixing(mixup, 0.0, data)
    check_teachers(net, teachers, data, "curve")
    objective = TaughtCurves(
        frozen_copy(net).to(engine.device),
        {name: curve.to(engine.device) for name, curve in curves.items()},
        teachers,
        engine.feed(data if statistics is None else statistics),
        r,
        mixup,
        seed=config.seed,
        trainable=learns,
        compiled=engine.compiled,
        fan_out=engine.fan_out,
        synced=engine.synced,
        refresh=engine.processes.refresh,
    )
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    title = counted(len(pairs), "curve")
    (states,) = run_training([objective], [data], [config.seed], title, net, first, **how)
    return {
        # Keep the modes that were passed in, not copies that went to the device and back.
        name: replace(trained.to("cpu"), start=curves[name].start, end=curves[name].end)
        for name, trained in objective.result(states).items()
    }


def listed_teachers(given: Sequence[Teacher] | Teacher) -> tuple[Teacher, ...]:
    """Teachers as a tuple, even if only one is given; raises an error if one is neither a mode nor an ensemble."""
    teachers = (given,) if isinstance(given, Mode | BridgedEnsemble) else tuple(given)
    for teacher in teachers:
        if not isinstance(teacher, Mode | BridgedEnsemble):
            raise ModebridgeError(
                f"Expected teachers to be modes or bridged ensembles, but got {type(teacher).__name__}; create a mode "
                "with Mode.from_module."
            )
    return teachers


@torch.no_grad()
def check_teachers(net: nn.Module, teachers: Sequence[Teacher], data: Checked, learner: str) -> None:
    """Raise an error if a mode does not fit the network, or a teacher's number of classes differs from the learner's.

    Args:
        net: the network of the teachers that are modes.
        teachers: all teachers.
        data: knows the number of classes, and provides an image.
        learner: the name of the learner in errors: "student", "curve".
    """
    modes = [teacher for teacher in teachers if isinstance(teacher, Mode)]
    if modes:
        check_modes(net, modes, 1, "distillation")
    image = take_rows(data.first(), slice(0, 1))
    for teacher in teachers:
        # Run a copy of an ensemble, on the image's device.
        classes = (
            classes_of(net, teacher, image, "train")
            if isinstance(teacher, Mode)
            else copy.deepcopy(teacher).to(next(iter(flatten(image).values())).device).members(image).shape[-1]
        )
        if classes != data.classes:
            raise ModebridgeError(
                f"Expected teachers with {data.classes} classes like the {learner}, but one has {classes}; use "
                f"a {learner} with the same last layer."
            )
