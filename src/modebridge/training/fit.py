"""Fit modes and curves: objectives, checks before training, and the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from modebridge.baselines import Rival
from modebridge.curves import Curve, PinStart, check_r, start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode
from modebridge.nets import frozen_copy
from modebridge.objectives import CurveObjective, ModeObjective
from modebridge.training.checkpoints import Checkpoints
from modebridge.training.checks import check_pairing, check_train, stale_statistics, trainable
from modebridge.training.config import DEFAULT, TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.epochs import Report
from modebridge.training.outcome import How, counted, refreshed, run_training
from modebridge.types import Batches

__all__ = ["fit_curve", "fit_curves", "fit_mode", "fit_modes"]


def fit_mode(
    net: nn.Module,
    train_data: Batches,
    *,
    config: TrainConfig = DEFAULT,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> Mode:
    """Train one network on labels, starting from its current weights. The module itself is not changed.

    Args:
        net: any module that maps images to logits; parameters with `requires_grad=False` are not trained. A
            `rivals.Rival` is trained by its own method.
        train_data: yields (images, labels).
        config: epochs and optimiser.
        valid: held-out data for `config.keep == "best"`.
        engine: device and precision; None means the CPU in fp32.
        checkpoints: where to save progress and resume from.
        report: called after every epoch.
        progress: show a progress bar; None shows it in terminals and notebooks unless there is a `report`.
    """
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    return fit_modes([net], [train_data], **how)[0]


def fit_modes(
    nets: Sequence[nn.Module],
    train_data: Sequence[Batches],
    *,
    config: TrainConfig = DEFAULT,
    seeds: Sequence[int] | None = None,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> list[Mode]:
    """Train several networks together, one loader per network, with the same result as one by one.

    Networks that differ only in their weights are compiled once. The arguments are those of `fit_mode`; `seeds` holds
    one seed per network, by default `config.seed` and up.
    """
    check_pairing(nets, train_data, "networks")
    seeds = _seeds(seeds, config, len(nets))
    engine = engine or Engine.of(config, nets[0])
    starts = [Mode.from_module(net) for net in nets]
    trains = [check_train(net, start, data, engine) for net, start, data in zip(nets, starts, train_data, strict=True)]
    objectives: list[ModeObjective] = []
    for k, (net, start) in enumerate(zip(nets, starts, strict=True)):
        twin = next((j for j in range(k) if engine.shares(nets[j], net)), None)
        objectives.append(
            _objective(net)(frozen_copy(net).to(engine.device), start, trainable(net))
            if twin is None
            else objectives[twin].on(start, trainable(net))
        )
    stale = stale_statistics(nets, config)
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    trained = run_training(objectives, trains, seeds, counted(len(nets), "mode"), nets[0], starts[0], **how)
    modes = [objective.result(states) for objective, states in zip(objectives, trained, strict=True)]
    if stale:
        # The statistics collected in training belong to those weights, not to their mean.
        modes = [
            refreshed(net, mode, engine.feed(data), engine) for net, mode, data in zip(nets, modes, trains, strict=True)
        ]
    return [mode.to("cpu") for mode in modes]


def fit_curve(
    net: nn.Module,
    start: Mode,
    end: Mode,
    train_data: Batches,
    *,
    pins: int = 1,
    pin_start: PinStart = "midpoint",
    r: float = 0.5,
    config: TrainConfig = DEFAULT,
    valid: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> Curve:
    """Train a low-loss curve between two modes; the modes are frozen, only the pins are trained.

    Check its middle before bridging it: if it is much worse than the ends, it is not worth a bridge.

    Args:
        net: the network of both modes; a parameter with `requires_grad=False` is not trained, see
            `CurveObjective.start`.
        start: the mode at r = 0.
        end: the mode at r = 1.
        train_data: yields (images, labels).
        pins: number of control points to learn.
        pin_start: "midpoint", or "random" as in the authors' code.
        r: the position where batch norm statistics are kept and validation runs.
        config: epochs and optimiser.
        valid: held-out data for `config.keep == "best"`.
        engine: device and precision; None means the CPU in fp32.
        checkpoints: where to save progress and resume from.
        report: called after every epoch.
        progress: show a progress bar; None shows it in terminals and notebooks unless there is a `report`.
    """
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    return fit_curves(net, [(start, end)], [train_data], pins=pins, pin_start=pin_start, r=r, **how)[0]


def fit_curves(
    net: nn.Module,
    pairs: Sequence[tuple[Mode, Mode]],
    train_data: Sequence[Batches],
    *,
    pins: int = 1,
    pin_start: PinStart = "midpoint",
    r: float = 0.5,
    config: TrainConfig = DEFAULT,
    seeds: Sequence[int] | None = None,
    valid: Batches | None = None,
    statistics: Batches | None = None,
    engine: Engine | None = None,
    checkpoints: Checkpoints | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> list[Curve]:
    """Train several curves on labels together, one loader per curve, with the same result as one by one.

    The arguments are those of `fit_curve`; `seeds` holds one seed per curve, by default `config.seed` and up.
    `statistics` are batches to re-estimate the batch norm of every curve on; by default each uses its own loader.
    """
    check_r(r)
    check_pairing(pairs, train_data, "pairs")
    engine = engine or Engine.of(config, net)
    seeds = _seeds(seeds, config, len(pairs))
    learns = trainable(net)
    curves = [
        start_curve(net, start, end, pins=pins, pin_start=pin_start, seed=seed)
        for (start, end), seed in zip(pairs, seeds, strict=True)
    ]
    trains = [check_train(net, start, data, engine) for (start, _), data in zip(pairs, train_data, strict=True)]
    first = CurveObjective(
        frozen_copy(net).to(engine.device),
        curves[0].to(engine.device),
        trains[0],
        r,
        trainable=learns,
    )
    # Each has its own statistics, as if trained alone; they share only the compiled program.
    objectives = [
        first.on(curve.to(engine.device), engine.feed(data if statistics is None else statistics))
        for curve, data in zip(curves, trains, strict=True)
    ]
    how = How(config=config, valid=valid, engine=engine, checkpoints=checkpoints, report=report, progress=progress)
    trained = run_training(objectives, trains, seeds, counted(len(pairs), "curve"), net, pairs[0][0], **how)
    return [
        # Keep the modes that were passed in, not copies that went to the device and back.
        replace(objective.result(states).to("cpu"), start=curve.start, end=curve.end)
        for objective, curve, states in zip(objectives, curves, trained, strict=True)
    ]


def _objective(net: nn.Module) -> type[ModeObjective]:
    return net.objective if isinstance(net, Rival) else ModeObjective


def _seeds(given: Sequence[int] | None, config: TrainConfig, count: int) -> list[int]:
    seeds = list(given) if given is not None else [config.seed + k for k in range(count)]
    if len(seeds) != count:
        raise ModebridgeError(f"Expected {count} seeds, but got {len(seeds)}; pass one for each.")
    return seeds
