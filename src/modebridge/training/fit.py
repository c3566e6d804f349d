"""Fit modes, curves and students: objectives, checks before training, and the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from modebridge import seeds as random
from modebridge.baselines import Baseline
from modebridge.batches import Mapped, check_loader, first_batch, is_batch
from modebridge.curves import Curve, PinStart, check_r, start_curve
from modebridge.ensembles import Ensemble
from modebridge.errors import ModebridgeError
from modebridge.matching import DistillationLoss, draw_mixing, mixed
from modebridge.modes import Mode, check_modes, has_statistics, refresh_statistics, to_mode
from modebridge.nets import frozen_copy, same_architecture
from modebridge.objectives import CurveObjective, ModeObjective, StudentObjective, StudentPlan, Teacher, fresh_mode
from modebridge.training.bridging import check_chance
from modebridge.training.checks import (
    check_config,
    check_teachers,
    check_train,
    mixing_of,
    run_training,
    trainable,
    warn_if_worse,
)
from modebridge.training.config import DEFAULT, Engine, TrainConfig
from modebridge.types import Batches

STUDENT_MIXUP = 1.0  # the default alpha for students


def fit_modes(
    nets: Sequence[nn.Module],
    train: Batches | Sequence[Batches],
    config: TrainConfig = DEFAULT,
    *,
    seeds: Sequence[int] | None = None,
    valid: Batches | None = None,
) -> list[Mode]:
    """Train networks on labels, starting from their current weights; the modules themselves are not changed.

    They are trained together, with the same result as one by one; those that differ only in their weights are compiled
    once.

    Args:
        nets: any modules that map images to logits; parameters with `requires_grad=False` are not trained. A
            `baselines.Baseline` is trained by its own method.
        train: one loader that yields (images, labels) for all, or a list with one for each network.
        config: all options of training.
        seeds: one seed per network; by default `config.seed` and up.
        valid: held-out data for `config.keep == "best"`.

    Returns:
        A mode per network, to pass on or to load into it: `mode.load(net)`.

    >>> train = [(torch.rand(8, 4), torch.arange(8) % 3)]
    >>> first, second = fit_modes([nn.Linear(4, 3), nn.Linear(4, 3)], train)
    """
    check_config(config)
    if isinstance(nets, nn.Module):
        raise ModebridgeError("Expected a list of networks, but got one module; put it in a list.")
    check_loader(train, "train")
    one_for_all = not isinstance(train, Sequence) or any(is_batch(item) for item in train[:1])
    loaders: Sequence[Batches] = [train] * len(nets) if one_for_all else train  # type: ignore[list-item,assignment]
    seeds = _seeds(seeds, config, nets, loaders, "networks")
    engine = Engine.of(config, nets[0])
    starts = [Mode.from_module(net) for net in nets]
    data = [check_train(net, start, batches, engine) for net, start, batches in zip(nets, starts, loaders, strict=True)]
    objectives: list[ModeObjective] = []
    for k, (net, start) in enumerate(zip(nets, starts, strict=True)):
        twin = next((j for j in range(k) if same_architecture(nets[j], net)), None)
        kind = net.objective if isinstance(net, Baseline) else ModeObjective
        objectives.append(
            kind(frozen_copy(net).to(engine.device), start, trainable(net))
            if twin is None
            else objectives[twin].on(start, trainable(net))
        )
    stale = _stale_statistics(nets, config)
    trained = run_training(objectives, data, seeds, "mode", nets[0], starts[0], valid, config, engine)
    modes = [objective.result(states) for objective, states in zip(objectives, trained, strict=True)]
    if stale:
        triples = zip(nets, modes, data, strict=True)
        modes = [_refreshed(net, mode, engine.feed(batches), engine) for net, mode, batches in triples]
    return [mode.to("cpu") for mode in modes]


def fit_curve(
    net: nn.Module,
    start: Mode,
    end: Mode,
    train: Batches,
    config: TrainConfig = DEFAULT,
    *,
    pins: int = 1,
    pin_start: PinStart = "midpoint",
    r: float = 0.5,
    valid: Batches | None = None,
) -> Curve:
    """Train a low-loss curve between two modes; the modes are frozen, only the pins are trained.

    Check its middle before bridging it: if it is much worse than the ends, it is not worth a bridge.

    Args:
        net: the network of both modes; a parameter with `requires_grad=False` is not trained, see
            `CurveObjective.start`.
        start: the mode at r = 0.
        end: the mode at r = 1.
        train: yields (images, labels).
        config: all options of training.
        pins: number of control points to learn.
        pin_start: "midpoint", or "random" as in the authors' code.
        r: the position where batch norm statistics are kept and validation runs.
        valid: held-out data for `config.keep == "best"`.
    """
    pair = to_mode(net, start), to_mode(net, end)
    return fit_curves(net, [pair], [train], config, pins=pins, pin_start=pin_start, r=r, valid=valid)[0]


def fit_curves(
    net: nn.Module,
    pairs: Sequence[tuple[Mode, Mode]],
    train: Sequence[Batches],
    config: TrainConfig = DEFAULT,
    *,
    pins: int = 1,
    pin_start: PinStart = "midpoint",
    r: float = 0.5,
    seeds: Sequence[int] | None = None,
    valid: Batches | None = None,
    statistics: Batches | None = None,
) -> list[Curve]:
    """Train several curves together, with the same result as one by one.

    The arguments are those of `fit_curve`; `seeds` holds one seed per curve, by default `config.seed` and up.
    `statistics` are batches to re-estimate the batch norm of every curve on; by default each uses its own loader.
    """
    check_r(r)
    check_config(config)
    seeds = _seeds(seeds, config, pairs, train, "pairs")
    engine = Engine.of(config, net)
    learns = trainable(net)
    curves = [
        start_curve(net, start, end, pins=pins, pin_start=pin_start, seed=seed)
        for (start, end), seed in zip(pairs, seeds, strict=True)
    ]
    data = [check_train(net, start, batches, engine) for (start, _), batches in zip(pairs, train, strict=True)]
    placed = frozen_copy(net).to(engine.device)
    first = CurveObjective(placed, curves[0].to(engine.device), data[0], r, trainable=learns)
    # Each has its own statistics, as if trained alone; they share only the compiled program.
    objectives = [
        first.on(curve.to(engine.device), engine.feed(batches if statistics is None else statistics))
        for curve, batches in zip(curves, data, strict=True)
    ]
    trained = run_training(objectives, data, seeds, "curve", net, pairs[0][0], valid, config, engine)
    return [
        # Keep the modes that were passed in, not copies that went to the device and back.
        replace(objective.result(states).to("cpu"), start=curve.start, end=curve.end)
        for objective, curve, states in zip(objectives, curves, trained, strict=True)
    ]


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
    teachers = (teachers,) if isinstance(teachers, Mode | Ensemble) else tuple(teachers)
    teachers = tuple(one if isinstance(one, Ensemble) else to_mode(net, one) for one in teachers)
    if not teachers:
        raise ModebridgeError("Expected teachers to distill, but got none; pass at least one mode.")
    student = student or net
    plan = StudentPlan(student, start or fresh_mode(student, config.seed), teachers, loss or DistillationLoss())
    one = teachers[0]
    base, first = (net, one) if isinstance(one, Mode) else (one.bases[0], one.first)
    check_loader(train, "train")
    check_modes(base, [first], 1, "distillation")
    with torch.random.fork_rng(devices=[]):  # a look at the data must not change what loaders draw
        check_chance(base, [first], train, Engine.of(config, net), "The first teacher")
    trained = fit_students(net, {"student": plan}, train, config, valid=valid)["student"]
    if valid is not None:
        warn_if_worse(Ensemble(base, [first]), Ensemble(student, [trained]), valid, config, "With the student")
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
    engine = Engine.of(config, net)
    for plan in plans.values():
        trainable(plan.net)
        check_modes(plan.net, [plan.start], 1, "a student")
    stale = _stale_statistics([plan.net for plan in plans.values()], config)
    batch = first_batch(train, "train")
    # Checked with every architecture among the students.
    for plan in {repr(plan.net): plan for plan in plans.values()}.values():
        data = check_train(plan.net, plan.start, train, engine, batch)
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
            students[name] = _refreshed(plan.net, students[name], batches, engine)
    return {name: mode.to("cpu") for name, mode in students.items()}


def _seeds(
    given: Sequence[int] | None, config: TrainConfig, items: Sequence[object], loaders: Sequence[Batches], what: str
) -> list[int]:
    """One seed for each item; raises an error unless there is also one loader for each, and at least one."""
    if not items or len(items) != len(loaders):
        raise ModebridgeError(
            f"Expected at least one of the {what} and one loader for each, but got {len(loaders)} loaders for "
            f"{len(items)} {what}; pass as many of one as of the other."
        )
    seeds = list(given) if given is not None else [config.seed + k for k in range(len(items))]
    if len(seeds) != len(items):
        raise ModebridgeError(f"Expected {len(items)} seeds, but got {len(seeds)}; pass one for each.")
    return seeds


def _stale_statistics(nets: Sequence[nn.Module], config: TrainConfig) -> bool:
    """Whether statistics collected in training must be estimated again, because they do not belong to the mean."""
    stale = config.average_from > 0 and any(has_statistics(net) for net in nets)
    if stale and config.keep == "best":
        raise ModebridgeError(
            "Expected keep='last' for averaged weights with batch norm, but got 'best'; the mean's running statistics "
            "are only estimated at the end."
        )
    return stale


def _refreshed(net: nn.Module, mode: Mode, batches: Batches, engine: Engine) -> Mode:
    placed = frozen_copy(net).to(engine.device)
    return replace(mode, buffers=refresh_statistics(placed, mode.params, mode.buffers, batches))


def _mixed(batches: Batches, mixup: float, cutmix: float, seed: int) -> Mapped:
    """Batches mixed as in training (see `draw_mixing`), with their own draws."""
    generator = random.generator(seed, "mixed batches")
    return Mapped(
        batches, lambda batch: (mixed(batch[0], draw_mixing(len(batch[1]), mixup, cutmix, generator)), batch[1])
    )
