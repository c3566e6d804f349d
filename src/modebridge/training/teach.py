"""Fit taught curves, and what can be known of teachers before anybody learns from them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from modebridge.batches import Checked, named, some_of
from modebridge.curves import BezierCurve, CurveKind, PinStart, Polychain, check_r, start_curve
from modebridge.distillation import TaughtCurves, Teacher
from modebridge.ensembles import BridgedEnsemble
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, check_modes
from modebridge.nets import skeleton
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.checks import check_batches, check_mixing, classes_of, held_out, least_images, trainable
from modebridge.training.engine import Engine
from modebridge.training.epochs import Report
from modebridge.training.loop import Task
from modebridge.training.outcome import train_and_look
from modebridge.training.train_config import DEFAULT, TrainConfig
from modebridge.types import Batches

__all__ = ["check_kinds", "check_teachers", "fit_taught_curves"]


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
) -> dict[str, BezierCurve | Polychain]:
    """Train several curves between students in one pass over the data: every teacher runs once per batch.

    At each step the network at one random r of each curve learns the teachers' mean probability on mixed-up images,
    with the loss of students. Each curve ends where it would have ended alone.

    Args:
        net: the network that all modes fit, as in `fit_curve`.
        pairs: the two ends of each curve, by name.
        teachers: modes, bridged ensembles, or both, as in `distill`: those of the ends.
        train_data: yields (images, labels); labels do not count.
        mixup: alpha of the per-sample mixup; 0 turns it off.
        kind: "bezier" or "polychain".
        pins: how many control points each curve learns.
        pin_start: "midpoint", or "random" as the authors do.
        r: where batch norm's statistics are kept and validation looks.
        config: epochs and optimiser; "best" keeps the lowest validation loss at r of each curve.
        seeds: of random pins, by name; `config.seed` where none is given.
        valid: held-out data for `config.keep == "best"`.
        statistics: batches to re-estimate batch norm on, mixed up as in training; None takes `train_data`.
        engine: device and precision; None is the CPU in fp32.
        checkpoints: where to save on the way and to go on from.
        report: told of progress.
    """
    check_r(r)
    if not isinstance(pairs, Mapping):
        raise ModebridgeError(
            f"Expected pairs to be a dict from names to the two ends of a curve, but got {type(pairs).__name__}; name "
            'them, as {"a": (start, end)}.'
        )
    teachers = (teachers,) if isinstance(teachers, Mode | BridgedEnsemble) else tuple(teachers)
    if not pairs:
        raise ModebridgeError("Expected at least one pair of modes, but got none; give the two ends of a curve.")
    if not teachers:
        raise ModebridgeError(
            "Expected teachers for curves to learn from, but got none; give at least one mode, or None for labels."
        )
    check_kinds(teachers)
    engine = engine or Engine()
    learns = trainable(net)
    curves = {
        name: start_curve(
            net, *ends, kind=kind, pins=pins, pin_start=pin_start, seed=(seeds or {}).get(name, config.seed)
        )
        for name, ends in pairs.items()
    }
    first = next(iter(pairs.values()))[0]
    data = check_batches(net, first, train_data, "train", least=partial(least_images, net, engine=engine))
    check_mixing(mixup, 0.0, data)
    check_teachers(net, teachers, data, "curve")
    objective = TaughtCurves(
        skeleton(net).to(engine.device),
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
    task = Task(objective, data, held_out(net, first, valid, config, engine), config.seed)
    (states,) = train_and_look([task], config, data.classes, engine=engine, checkpoints=checkpoints, report=report)
    return {
        # The very modes that were given, not copies of them that have been to the device and back.
        name: replace(trained.to("cpu"), start=curves[name].start, end=curves[name].end)
        for name, trained in objective.result(states).items()
    }


def check_kinds(teachers: Sequence[Teacher]) -> None:
    """Refuse teachers that are neither modes nor ensembles."""
    for teacher in teachers:
        if not isinstance(teacher, Mode | BridgedEnsemble):
            raise ModebridgeError(
                f"Expected teachers to be modes or bridged ensembles, but got {type(teacher).__name__}; make a mode of "
                "a module with Mode.from_module."
            )


@torch.no_grad()
def check_teachers(net: nn.Module, teachers: Sequence[Teacher], data: Checked, learner: str) -> None:
    """Refuse modes that do not fit the network, and teachers that know other classes than those who learn from them.

    Args:
        net: the network of the teachers that are modes.
        teachers: all of them.
        data: knows the classes, and an image to ask about.
        learner: how errors call who learns: "student", "curve".
    """
    modes = [teacher for teacher in teachers if isinstance(teacher, Mode)]
    if modes:
        check_modes(net, modes, 1, "distillation")
    image = some_of(data.first(), slice(0, 1))
    for teacher in teachers:
        # Of an ensemble a copy is asked, where the image is.
        known = (
            classes_of(net, teacher, image, "train")
            if isinstance(teacher, Mode)
            else copy.deepcopy(teacher).to(next(iter(named(image).values())).device).members(image).shape[-1]
        )
        if known != data.classes:
            raise ModebridgeError(
                f"Expected teachers of as many classes as the {learner}'s {data.classes}, but one has {known}; give a "
                f"{learner} with the same last layer."
            )
