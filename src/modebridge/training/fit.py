"""Fit modes, curves and students: objectives, checks before training, and the loop."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from modebridge import seeds, trees
from modebridge.baselines import Baseline
from modebridge.batches import go_to_epoch, is_batch
from modebridge.curves import Curve, PinStart, check_r, start_curve
from modebridge.errors import ModebridgeError
from modebridge.modes import Mode, refresh_statistics
from modebridge.nets import frozen_copy, same_architecture
from modebridge.objectives import CurveObjective, ModeObjective
from modebridge.training.checks import (
    Checked,
    check_pairing,
    check_train,
    held_out,
    stale_statistics,
    trainable,
)
from modebridge.training.config import DEFAULT, TrainConfig
from modebridge.training.engine import Engine
from modebridge.training.epochs import Epoch
from modebridge.training.loop import Task
from modebridge.training.loop import train as run_loop
from modebridge.types import Batch, Batches, Objective, State, States

RISEN, OVERSHOOT = 2.0, 50
"""Training has diverged if the loss exceeds RISEN times the loss before training, or times that of a uniform guess.

The first steps may overshoot: after n steps the limit is 1 + OVERSHOOT / n times as high.
"""

GROWN = 1000.0
"""Growth of the weights' norm that no successful training reaches."""


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
    """
    one_for_all = not isinstance(train, Sequence) or any(is_batch(item) for item in train[:1])
    loaders: Sequence[Batches] = [train] * len(nets) if one_for_all else train  # type: ignore[list-item,assignment]
    check_pairing(nets, loaders, "networks")
    seeds = _seeds(seeds, config, len(nets))
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
    stale = stale_statistics(nets, config)
    trained = run_training(objectives, data, seeds, "mode", nets[0], starts[0], valid, config, engine)
    modes = [objective.result(states) for objective, states in zip(objectives, trained, strict=True)]
    if stale:
        # The statistics collected in training belong to those weights, not to their mean.
        triples = zip(nets, modes, data, strict=True)
        modes = [refreshed(net, mode, engine.feed(batches), engine) for net, mode, batches in triples]
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
    return fit_curves(net, [(start, end)], [train], config, pins=pins, pin_start=pin_start, r=r, valid=valid)[0]


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
    check_pairing(pairs, train, "pairs")
    engine = Engine.of(config, net)
    seeds = _seeds(seeds, config, len(pairs))
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


def run_training(
    objectives: Sequence[Objective[Any]],
    data: Sequence[Checked],
    seeds: Sequence[int],
    title: str,
    net: nn.Module,
    mode: Mode,
    valid: Batches | None,
    config: TrainConfig,
    engine: Engine,
) -> list[States]:
    """The loop, with one task for each objective, and one warning if training diverged.

    `net` and `mode` are used to check the validation data; `title` is the text in front of the progress bar.
    """
    kept_out = held_out(net, mode, valid, config, engine)
    triples = zip(objectives, data, seeds, strict=True)
    tasks = [Task(objective, batches, kept_out, seed) for objective, batches, seed in triples]
    epochs: list[Epoch] = []
    trained = run_loop(tasks, config, engine=engine, title=title, report=epochs.append)
    # The first problem is enough: all members have the same settings.
    for problem in _problems(tasks, trained, epochs, data[0].classes, engine):
        warnings.warn(f"{problem}: training diverged; lower the learning rate (lr={config.lr:g}).", stacklevel=3)
        break
    return trained


def refreshed(net: nn.Module, mode: Mode, batches: Batches, engine: Engine) -> Mode:
    placed = frozen_copy(net).to(engine.device)
    return Mode(mode.params, refresh_statistics(placed, mode.params, mode.buffers, batches))


def _seeds(given: Sequence[int] | None, config: TrainConfig, count: int) -> list[int]:
    seeds = list(given) if given is not None else [config.seed + k for k in range(count)]
    if len(seeds) != count:
        raise ModebridgeError(f"Expected {count} seeds, but got {len(seeds)}; pass one for each.")
    return seeds


def _problems(
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
